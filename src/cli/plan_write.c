#include "cli/plan_write.h"

#include "base/file.h"
#include "train/setup.h"

#include <string.h>

static void set_candidate(Config *config, const SearchCandidate *c) {
    config->train.micro_batch = c->micro_batch;
    config->train.seq = c->seq;
    config->train.grad_accum = c->grad_accum;
    config->train.batch_tokens = 0; // grad_accum says
    config->recompute.mode = recompute_name(c->recompute);
    config->parallelism.data = c->mesh.dp;
    config->parallelism.tensor = c->mesh.tp;
    config->parallelism.pipeline = c->mesh.pp;
    config->parallelism.context = c->mesh.cp;
    config->parallelism.expert = c->mesh.ep;
    config->parallelism.expert_tensor = c->mesh.etp;
    config->parallelism.zero = c->mesh.zero;
    config->parallelism.layers_per_stage = 0; // virtual_stages says
    bool interleaved = c->mesh.pp > 1 && c->virtual_stages > 1;
    config->parallelism.virtual_stages = interleaved ? c->virtual_stages : 0;
    if (interleaved)
        config->parallelism.schedule = "interleaved";
    else if (strcmp(config->parallelism.schedule, "interleaved") == 0)
        config->parallelism.schedule = "1f1b";
}

Status plan_write_config(const char *path, const Config *config, const SearchCandidate *candidate, const char *head) {
    Config copy;
    TRY(config_copy(&copy, config));
    set_candidate(&copy, candidate);
    setup_resolve_paths(&copy);
    Status status = config_check(&copy);
    if (!status) {
        TextBuffer text = {0};
        text_buffer_format(&text, "%s", head);
        config_write(&copy, &text);
        status = file_write_atomic(path, text.data, text.length);
        text_buffer_free(&text);
    }
    config_free(&copy);
    return status;
}
