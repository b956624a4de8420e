// hearth eval: loss, perplexity and bits per byte of a model on token shards.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "train/evaluate.h"
#include "train/loaded.h"

#include <stdlib.h>

static Status evaluate(LoadedRequest *request, SamplesRequest *data, int64_t windows) {
    Loaded loaded;
    Samples samples;
    MetricsEval eval;
    TRY(samples_open(&samples, data));
    Status status = loaded_open(&loaded, request);
    if (status) {
        samples_close(&samples);
        return status;
    }
    const Dataset *dataset = &samples.mix.datasets[0];
    if (dataset->vocab_size > (uint64_t)loaded.config.vocab)
        status = status_usage("the data has a vocabulary of %llu, the model only %d rows",
                              (unsigned long long)dataset->vocab_size, loaded.config.vocab);
    else if (loaded.tokenizer && tokenizer_hash(loaded.tokenizer) != dataset->tokenizer_hash)
        status = status_hint(
            status_usage("the data was made with another tokenizer than the model's (%s)", loaded.tokenizer_path),
            "prepare the data with the model's, or name the model's with --tokenizer PATH");
    else if (!(status = evaluate_samples(loaded.model, &samples, (uint64_t)windows, &eval))) {
        char count[32];
        printf("model           %s\n", loaded.source);
        printf("targets         %s in windows of %d tokens\n", text_grouped(count, eval.targets), data->seq);
        printf("loss            %.6f nats per token\n", eval.loss);
        printf("perplexity      %.4f\n", eval.perplexity);
        if (eval.bits_per_byte > 0) printf("bits per byte   %.6f\n", eval.bits_per_byte);
        printf("time            %.1f s\n", eval.seconds);
    }
    loaded_close(&loaded);
    samples_close(&samples);
    return status;
}

Status cmd_eval(int argc, char **argv) {
    LoadedRequest request = {.device = "auto"};
    ArgList paths = {0}, words;
    int64_t seq = 256, windows = 0, micro_batch = 8;
    const char *split = "val";
    bool helped, mask = false;
    const Arg args[] = {
        {"--data", ARG_LIST, &paths, "PATH", "dataset directory, shard or glob; may be given many times"},
        {"--split", ARG_TEXT, &split, "NAME", "split of a dataset directory (default val)"},
        {"--seq", ARG_INT, &seq, "N", "window length (default 256)"},
        {"--windows", ARG_INT, &windows, "N", "a fixed subset of this many windows (default 0: all)"},
        {"--micro-batch", ARG_INT, &micro_batch, "N", "windows at a time (default 8)"},
        {"--mask-documents", ARG_FLAG, &mask, NULL, "attend and take loss only within documents"},
        {"--checkpoint", ARG_TEXT, &request.checkpoint, "WHICH", "newest (default), best or a step number"},
        {"--tokenizer", ARG_TEXT, &request.tokenizer, "PATH", "default: the one beside the model"},
        {"--device", ARG_TEXT, &request.device, "NAME", "auto (default), cpu, cuda"},
        {"--precision", ARG_TEXT, &request.precision, "NAME", "fp32 or bf16 (default: fp32 on a CPU, bf16 on a GPU)"},
    };
    const ArgCommand command = {"hearth eval RUN|HF_DIR --data PATH [options]",
                                "Measures the loss of a model on token shards, with perplexity and bits per byte.",
                                args,
                                ARG_COUNT(args),
                                1,
                                1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        SamplesRequest data = {
            .paths = paths.items, .path_count = paths.count, .split = split, .seq = (int)seq, .mask_documents = mask};
        request.path = words.items[0];
        request.micro_batch = (int)micro_batch;
        request.seq = (int)seq;
        request.documents = mask;
        if (!paths.count)
            status = status_usage("hearth eval needs --data PATH");
        else if (seq < 2 || seq > 1 << 22 || windows < 0 || micro_batch < 1 || micro_batch > 1 << 16)
            status = status_usage("--seq takes 2 to 4194304, --windows 0 or more, --micro-batch 1 to 65536");
        else
            status = evaluate(&request, &data, windows);
    }
    free(words.items);
    free(paths.items);
    return status;
}
