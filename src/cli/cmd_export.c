// hearth export: a checkpoint as a Hugging Face directory.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "infer/export.h"

#include <stdlib.h>
#include <string.h>

Status cmd_export(int argc, char **argv) {
    const char *checkpoint = NULL, *dtype = "bf16";
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"--checkpoint", ARG_TEXT, &checkpoint, "WHICH", "newest (default), best or a step number"},
        {"--dtype", ARG_TEXT, &dtype, "NAME", "fp32, bf16 (default) or fp16"},
    };
    const ArgCommand command = {
        "hearth export RUN OUT_DIR [--checkpoint WHICH] [--dtype NAME]",
        "Writes config.json, model.safetensors and the tokenizer as transformers, vLLM and llama.cpp read them.",
        args,
        ARG_COUNT(args),
        2,
        2};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        DType type = DTYPE_BF16;
        if (strcmp(dtype, "fp32") == 0)
            type = DTYPE_F32;
        else if (strcmp(dtype, "fp16") == 0)
            type = DTYPE_F16;
        else if (strcmp(dtype, "bf16") != 0)
            status = status_usage("--dtype is fp32, bf16 or fp16, not \"%s\"", dtype);
        char *source = NULL;
        if (!status) status = export_hf(words.items[0], checkpoint, words.items[1], type, &source);
        if (!status) printf("wrote %s, from %s\n", words.items[1], source);
        free(source);
    }
    free(words.items);
    return status;
}
