// Quantities: documents, disk and tokenizer speed.
#include "plan/calc_rows.h"
#include "plan/data_budget.h"

static const CalcQuantity table[] = {
    {
        .name = "goal_docs_floor",
        .summary = "documents for a token target",
        .unit = "docs",
        .inputs = {IN("target_tokens", "tokens", POSITIVE, "tokens wanted"),
                   IN("avg_tokens_per_doc", "", POSITIVE, "mean tokens per document"),
                   IN("buffer", "", NUMBER, "reserve: 0.25 for a quarter more")},
        .function = CALC_CALL(plan_docs_for_tokens),
        .formula = "floor({target_tokens}/{avg_tokens_per_doc}*(1 + {buffer}))",
        .convention = "rounded down",
        .note = "20B tokens at 999 with a quarter more are 25,025,025 documents, not 24M",
    },
    {
        .name = "useful_token_fraction_pct",
        .summary = "useful tokens when each document is padded to a sequence",
        .unit = "%",
        .inputs = {IN("avg_tokens_per_doc", "", POSITIVE, "mean tokens per document"), IN_SEQ},
        .function = CALC_CALL(plan_useful_fraction),
        .formula = "min(1, {avg_tokens_per_doc}/{seq_len})*100",
        .convention = "upper bound: documents longer than a sequence are cut",
        .note = "an MFU that counts padding is an MFU of padding; packing is the gain",
    },
    {
        .name = "dataset_bytes",
        .summary = "disk for a tokenized dataset",
        .unit = "B",
        .inputs = {IN_TOKENS, IN("bytes_per_token", "", POSITIVE, "2 (uint16), 4 (int32) or 8 (int64)")},
        .function = CALC_CALL(plan_dataset_bytes),
        .formula = "{tokens}*{bytes_per_token}",
        .convention = "ids only, without index",
        .note = "a vocabulary of up to 65,536 fits uint16: 2 bytes per token, half of int32",
    },
    {
        .name = "tokenizer_workers",
        .summary = "tokenizer processes that memory allows",
        .unit = "workers",
        .inputs = {IN("ram_GB", "GB", POSITIVE, "memory"), IN("GB_per_worker", "GB", POSITIVE, "memory of one worker")},
        .function = CALC_CALL(plan_tokenizer_workers),
        .formula = "floor({ram_GB}/{GB_per_worker})",
        .convention = "rounded down; cores are a second limit",
        .note = "",
    },
    {
        .name = "rate_per_worker",
        .summary = "tokenizer speed of one worker",
        .unit = "tok/s/worker",
        .inputs = {IN_TOKENS, IN("seconds", "s", POSITIVE, "time"), IN("workers", "", COUNT, "workers")},
        .function = CALC_CALL(plan_rate_per_worker),
        .formula = "{tokens}/{seconds}/{workers}",
        .convention = "mean over the whole job",
        .note = "",
    },
};

const CalcSubject calc_subject_data = {"Data", SUBJECT_TABLE(table)};
