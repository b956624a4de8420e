#include "plan/data_budget.h"

#include "plan/rounding.h"

double plan_docs_for_tokens(double tokens, double tokens_per_doc, double buffer) {
    return plan_floor(tokens / tokens_per_doc * (1 + buffer));
}

double plan_useful_fraction(double tokens_per_doc, double seq) {
    return fmin(1, tokens_per_doc / seq);
}

double plan_dataset_bytes(double tokens, double bytes_per_token) {
    return tokens * bytes_per_token;
}

double plan_token_bytes(double vocab) {
    return vocab > 0 && vocab <= 65536 ? 2 : 4;
}

double plan_tokenizer_workers(double memory_bytes, double bytes_per_worker) {
    return plan_floor(memory_bytes / bytes_per_worker);
}

double plan_rate_per_worker(double tokens, double seconds, double workers) {
    return tokens / seconds / workers;
}
