// hearth sample: text from a trained model, streamed as it comes.
#include "base/file.h"
#include "base/json.h"
#include "base/range.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "infer/loaded.h"
#include "infer/sampler.h"
#include "model/generate.h"

#include <stdlib.h>
#include <string.h>

typedef struct SampleRequest {
    const char *prompt;
    int64_t tokens, count;
    Sampler sampler;
    bool keep;
} SampleRequest;

static Status encode_prompt(const Loaded *loaded, const char *prompt, TokenIds *ids) {
    TokenizerState *state = tokenizer_state_new(loaded->tokenizer);
    Status status =
        tokenizer_encode(state, prompt, strlen(prompt), TOKENIZER_ADD_SPECIAL | TOKENIZER_MATCH_SPECIAL, ids);
    tokenizer_state_free(state);
    int64_t end = tokenizer_end_of_text(loaded->tokenizer);
    if (status || ids->count) return status;
    Config run;
    bool of_run;
    TRY(loaded_run_config(loaded->source, &run, &of_run));
    bool masked = of_run && run.data.mask_documents;
    if (of_run) config_free(&run);
    if (masked) // attention and loss end at a document's end: what comes first in the next was never a target
        return status_usage("this run has not learned how documents begin (data.mask_documents): give --prompt TEXT");
    if (end < 0) return status_usage("the prompt is empty, and the tokenizer has no end-of-text to start from");
    ids->ids = xrealloc(ids->ids, sizeof *ids->ids); // a document starts where the one before it ended
    ids->ids[0] = (uint32_t)end;
    ids->count = ids->capacity = 1;
    return NULL;
}

static void write_token(const Loaded *loaded, int32_t id, TextBuffer *whole) {
    size_t length;
    const char *bytes = tokenizer_token_bytes(loaded->tokenizer, (uint32_t)id, &length);
    if (bytes) fwrite(bytes, 1, length, stdout);
    if (bytes) text_buffer_add(whole, bytes, length);
    fflush(stdout);
}

// Adds what was drawn to samples.jsonl of the run that the checkpoint belongs to, where `hearth report` finds it.
static Status keep_sample(const Loaded *loaded, const char *prompt, const TextBuffer *drawn) {
    int64_t step = 0;
    text_to_int64(path_name(loaded->source) + strlen("step-"), &step);
    TextBuffer text = {0}, asked = {0};
    utf8_repair(&asked, prompt, strlen(prompt));
    utf8_repair(&text, drawn->length ? drawn->data : "", drawn->length);
    json_t *line = json_pack("{s:I,s:s%,s:s%}", "step", (json_int_t)step, "prompt", asked.length ? asked.data : "",
                             asked.length, "text", text.length ? text.data : "", text.length);
    char *dump = json_dumps(line, JSON_COMPACT), *whole = text_format("%s\n", dump);
    char *checkpoints = path_directory(loaded->source), *run = path_directory(checkpoints);
    char *path = path_join(run, "samples.jsonl");
    Status status = file_append(path, whole, strlen(whole));
    free(path), free(run), free(checkpoints), free(whole), free(dump);
    json_decref(line);
    text_buffer_free(&text);
    text_buffer_free(&asked);
    return status;
}

static void stream_text(const Loaded *loaded, Generator *generator, const TokenIds *prompt,
                        const SampleRequest *request, uint64_t number, TextBuffer *whole) {
    int vocab = loaded->config.vocab;
    float *logits = xmalloc((size_t)vocab * sizeof *logits);
    int64_t end = tokenizer_end_of_text(loaded->tokenizer);
    Sampler sampler = request->sampler;
    sampler.seed += number;
    generator_reset(generator);
    printf("%s", request->prompt);
    enum { PIECE = 512 }; // products of many rows would race for their fastest kernel, at every length of a prompt anew
    for (size_t at = 0; at < prompt->count; at += PIECE) {
        size_t left = prompt->count - at;
        generator_feed(generator, (const int32_t *)prompt->ids + at, (int)(left < PIECE ? left : PIECE), logits);
    }
    for (int64_t i = 0; i < request->tokens && !ferror(stdout); i++) {
        int32_t id = sampler_pick(&sampler, logits, vocab, (uint64_t)i);
        if (id == end) break;
        write_token(loaded, id, whole);
        if (i + 1 < request->tokens) generator_feed(generator, &id, 1, logits);
    }
    printf("\n");
    free(logits);
}

static Status print_samples(const LoadedRequest *model, const SampleRequest *request) {
    Loaded loaded;
    TRY(sampler_check(&request->sampler));
    TRY(loaded_open(&loaded, model));
    TokenIds prompt = {0};
    Generator *generator = NULL;
    Status status = NULL;
    if (request->keep && !(loaded.checkpoint && text_starts_with(path_name(loaded.source), "step-")))
        status = status_usage("--keep needs a run: %s is no checkpoint of one", loaded.source);
    else if (!loaded.tokenizer)
        status = status_hint(status_usage("no tokenizer was found beside %s", loaded.source),
                             "name the one its data was made with: --tokenizer PATH, or --tokenizer bytes");
    if (!status) status = encode_prompt(&loaded, request->prompt, &prompt);
    if (!status) status = generator_create(&generator, loaded.model, (int)((int64_t)prompt.count + request->tokens));
    for (int64_t i = 0; i < request->count && !status; i++) {
        if (i) printf("\n");
        TextBuffer whole = {0};
        stream_text(&loaded, generator, &prompt, request, (uint64_t)i, &whole);
        status = loaded.ops->sync(loaded.ops);
        if (!status && request->keep) status = keep_sample(&loaded, request->prompt, &whole);
        text_buffer_free(&whole);
    }
    generator_free(generator);
    free(prompt.ids);
    loaded_close(&loaded);
    return status;
}

Status cmd_sample(int argc, char **argv) {
    LoadedRequest model = {.device = "auto"};
    SampleRequest request = {"", 256, 1, {1.0, 0, 1.0, 0}, false};
    int64_t top_k = 0, seed = 1;
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"--prompt", ARG_TEXT, &request.prompt, "TEXT",
         "what to go on from (default: the start of a document, where the run learned that)"},
        {"--tokens", ARG_INT, &request.tokens, "N", "longest continuation (default 256); end-of-text ends it earlier"},
        {"--count", ARG_INT, &request.count, "N", "how many (default 1), with seeds that count up"},
        {"--temperature", ARG_DOUBLE, &request.sampler.temperature, "T", "default 1; 0 takes the most likely token"},
        {"--top-k", ARG_INT, &top_k, "K", "draw from the K most likely tokens (default 0: all)"},
        {"--top-p", ARG_DOUBLE, &request.sampler.top_p, "P",
         "draw from the fewest tokens that hold P of the probability"},
        {"--seed", ARG_INT, &seed, "N", "the same seed gives the same text (default 1)"},
        {"--checkpoint", ARG_TEXT, &model.checkpoint, "WHICH", "newest (default), best or a step number"},
        {"--keep", ARG_FLAG, &request.keep, NULL, "also add it to samples.jsonl of the run, for `hearth report`"},
        {"--tokenizer", ARG_TEXT, &model.tokenizer, "PATH", "default: the one beside the model"},
        {"--device", ARG_TEXT, &model.device, "NAME", "auto (default), cpu, cuda"},
        {"--precision", ARG_TEXT, &model.precision, "NAME",
         "fp32, bf16 or fp16 (default: fp32 on a CPU, bf16 on a GPU)"},
    };
    const ArgCommand command = {"hearth sample RUN|HF_DIR [--prompt TEXT] [options]",
                                "Prints text from a trained model, token by token as it is drawn.",
                                args,
                                ARG_COUNT(args),
                                1,
                                1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        model.path = words.items[0];
        model.seq = 16; // the generator has its own buffers; the model's are not used
        request.sampler.top_k = (int)top_k;
        request.sampler.seed = (uint64_t)seed;
        status = check_number("--tokens", (double)request.tokens, 1, 1 << 20);
        if (!status) status = check_number("--count", (double)request.count, 1, 1e9);
        if (!status) status = check_number("--top-k", (double)top_k, 0, 1 << 24);
        if (!status) status = print_samples(&model, &request);
    }
    free(words.items);
    return status;
}
