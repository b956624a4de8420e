// hearth eval: loss, perplexity and bits per byte of a model on token shards.
#include "base/file.h"
#include "base/log.h"
#include "base/range.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "infer/loaded.h"
#include "train/evaluate.h"
#include "train/setup.h"

#include <stdlib.h>
#include <string.h>

typedef struct EvalRequest {
    LoadedRequest model;
    ArgList paths;
    const char *split;
    int64_t seq, windows; // seq 0: as the run was trained
    bool mask;
} EvalRequest;

static Status print_evaluation(const EvalRequest *request, const Samples *samples) {
    Loaded loaded;
    Evaluation eval;
    TRY(loaded_open(&loaded, &request->model));
    Status status = NULL;
    const Dataset *dataset = &samples->mix.datasets[0];
    if (samples->seq > loaded.config.max_positions)
        log_warn("windows of %d tokens, and the model was made for %d positions", samples->seq,
                 loaded.config.max_positions);
    if (dataset->vocab_size > (uint64_t)loaded.config.vocab)
        status = status_usage("the data has a vocabulary of %llu, the model only %d rows",
                              (unsigned long long)dataset->vocab_size, loaded.config.vocab);
    else if (loaded.tokenizer && tokenizer_hash(loaded.tokenizer) != dataset->tokenizer_hash)
        status = status_hint(
            status_usage("the data was made with another tokenizer than the model's (%s)", loaded.tokenizer_path),
            "prepare the data with the model's, or name the model's with --tokenizer PATH");
    else if (!(status = evaluate_samples(loaded.model, samples, (uint64_t)request->windows, &eval))) {
        char count[32];
        printf("model           %s\n", loaded.source);
        printf("targets         %s in windows of %d tokens%s\n", text_grouped(count, eval.targets), samples->seq,
               samples->mask_documents ? ", within documents" : "");
        printf("loss            %.6f nats per token\n", eval.loss);
        printf("perplexity      %.4f\n", eval.perplexity);
        if (eval.bits_per_byte > 0) printf("bits per byte   %.6f\n", eval.bits_per_byte);
        printf("time            %.1f s\n", eval.seconds);
    }
    loaded_close(&loaded);
    return status;
}

// What is not given is the run's own, so that its validation loss comes out again.
static Status open_samples(EvalRequest *request, const Config *run, Samples *samples) {
    if (!request->seq) request->seq = run ? run->train.seq : 256;
    if (run) request->mask |= run->data.mask_documents;
    SamplesRequest given = {.paths = request->paths.items,
                            .path_count = request->paths.count,
                            .split = request->split ? request->split : "val",
                            .seq = (int)request->seq,
                            .mask_documents = request->mask,
                            .verify = VERIFY_ONCE};
    if (given.path_count) return samples_open(samples, &given);
    if (request->split) return status_usage("--split is of a directory of --data, which is not given");
    if (!file_is_directory(request->model.path)) return status_usage("there is no directory %s", request->model.path);
    if (!run) return status_usage("%s is not a run, so hearth eval needs --data PATH", request->model.path);
    Config own = *run;
    own.train.seq = request->seq;
    own.data.mask_documents = request->mask;
    TRY(status_hint(setup_validation(&own, samples), "other data: --data PATH"));
    return samples->windows ? NULL : status_usage("the run has no validation data: give some with --data PATH");
}

static Status evaluate_request(EvalRequest *request) {
    Config run;
    Samples samples;
    bool of_run;
    TRY(loaded_run_config(request->model.path, &run, &of_run));
    Status status = open_samples(request, of_run ? &run : NULL, &samples);
    if (!status) {
        if (of_run && !request->model.precision)
            request->model.precision = strcmp(run.train.precision, "fp32") == 0   ? "fp32"
                                       : strcmp(run.train.precision, "fp16") == 0 ? "fp16"
                                                                                  : "bf16";
        request->model.seq = (int)request->seq;
        request->model.documents = request->mask;
        status = print_evaluation(request, &samples);
        samples_close(&samples);
    }
    if (of_run) config_free(&run);
    return status;
}

Status cmd_eval(int argc, char **argv) {
    EvalRequest request = {.model = {.device = "auto"}};
    ArgList words;
    int64_t micro_batch = 8;
    bool helped;
    const Arg args[] = {
        {"--data", ARG_LIST, &request.paths, "PATH",
         "dataset directory, shard or glob; may be given many times (default: the run's validation data)"},
        {"--split", ARG_TEXT, &request.split, "NAME", "split of a dataset directory of --data (default val)"},
        {"--seq", ARG_INT, &request.seq, "N", "window length (default: the run's train.seq, else 256)"},
        {"--windows", ARG_INT, &request.windows, "N", "a fixed subset of this many windows (default 0: all)"},
        {"--micro-batch", ARG_INT, &micro_batch, "N", "windows at a time (default 8)"},
        {"--mask-documents", ARG_FLAG, &request.mask, NULL,
         "attend and take loss only within documents (default: as the run was trained)"},
        {"--checkpoint", ARG_TEXT, &request.model.checkpoint, "WHICH", "newest (default), best or a step number"},
        {"--tokenizer", ARG_TEXT, &request.model.tokenizer, "PATH", "default: the one beside the model"},
        {"--device", ARG_TEXT, &request.model.device, "NAME", "auto (default), cpu, cuda"},
        {"--precision", ARG_TEXT, &request.model.precision, "NAME",
         "fp32, bf16 or fp16 (default: the run's; of others fp32 on a CPU, bf16 on a GPU)"},
    };
    const ArgCommand command = {"hearth eval RUN | hearth eval HF_DIR --data PATH [options]",
                                "Measures the loss of a model on token shards, with perplexity and bits per byte. Of a "
                                "run: on its\nvalidation data, as it was trained, unless the options say otherwise.",
                                args,
                                ARG_COUNT(args),
                                1,
                                1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        request.model.path = words.items[0];
        request.model.micro_batch = (int)micro_batch;
        if (request.seq) status = check_number("--seq", (double)request.seq, 2, 1 << 22);
        if (!status) status = check_number("--windows", (double)request.windows, 0, 1e15);
        if (!status) status = check_number("--micro-batch", (double)micro_batch, 1, 1 << 16);
        if (!status) status = evaluate_request(&request);
    }
    free(words.items);
    free(request.paths.items);
    return status;
}
