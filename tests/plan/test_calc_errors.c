// Inputs that cannot be right are refused with a message that names them, exit code 2 and what the quantity takes.
#include "testing.h"

#include "plan/calc.h"

typedef struct ErrorCase {
    const char *quantity;
    const char *words; // separated by spaces
    const char *part;  // of the message
} ErrorCase;

static const ErrorCase cases[] = {
    // the quantity
    {"ring_allreduce_mss", "N=8", "did you mean ring_allreduce_ms?"},
    {"no such thing at all", "", "unknown quantity"},
    {"", "", "unknown quantity"},
    // missing
    {"ring_allreduce_ms", "", "needs M_GB, N, bw_GBps"},
    {"ring_allreduce_ms", "M_GB=2 N=8", "needs bw_GBps"},
    {"zero_state_GB", "params_B=7 N=64", "needs stage"},
    {"loss_scale", "init=65536 grow=2000", "needs steps"},
    {"params_moe_total", "V=1 d=1 L=1 H=1 KV=1 hd=1 E=1 k=1 f=1", "needs tied"},
    // unknown, twice, no value
    {"ring_allreduce_ms", "M_GB=2 N=8 bw_GBs=50", "no input \"bw_GBs\"; did you mean bw_GBps?"},
    {"ring_allreduce_ms", "M_GB=2 N=8 bw_GBps=50 colour=1", "no input \"colour\""},
    {"ring_allreduce_ms", "M_GB=2 N=8 N=8 bw_GBps=50", "N is given twice"},
    {"ring_allreduce_ms", "M_GB=2 8 bw_GBps=50", "\"8\" is not of the form name=value"},
    {"ring_allreduce_ms", "M_GB= N=8 bw_GBps=50", "M_GB has no value"},
    // not numbers
    {"ring_allreduce_ms", "M_GB=two N=8 bw_GBps=50", "M_GB takes a number, not \"two\""},
    {"ring_allreduce_ms", "M_GB=2 N=8x bw_GBps=50", "N takes a number, not \"8x\""},
    {"ring_allreduce_ms", "M_GB=nan N=8 bw_GBps=50", "M_GB takes a number, not \"nan\""},
    {"ring_allreduce_ms", "M_GB=1e999 N=8 bw_GBps=50", "M_GB takes a number"},
    {"chinchilla_tokens", "params=0x10", "params takes a number"},
    {"chinchilla_tokens", "params=B", "params takes a number, not \"B\""},
    {"chinchilla_tokens", "params=1,000", "params takes a number, not \"1,000\""},
    {"chinchilla_tokens", "params=7GB", "params takes a number, not \"7GB\""},
    // suffixes where the unit already holds a multiple
    {"bytes_total_GB", "params_B=7B bytes_per_param=2", "params_B is in billion params; write the plain number"},
    {"ring_allreduce_ms", "M_GB=2B N=8 bw_GBps=50", "M_GB is in GB; write the plain number"},
    // limits
    {"ring_allreduce_ms", "M_GB=-2 N=8 bw_GBps=50", "M_GB=-2 must not be negative"},
    {"ring_allreduce_ms", "M_GB=2 N=0 bw_GBps=50", "N must not be zero"},
    {"ring_allreduce_ms", "M_GB=2 N=8 bw_GBps=0", "bw_GBps must not be zero"},
    {"ring_allreduce_ms", "M_GB=2 N=8 bw_GBps=50 latency_us=-1", "latency_us=-1 must not be negative"},
    {"ring_allreduce_ms", "M_GB=2 N=2.5 bw_GBps=50", "N=2.5 must be a whole number"},
    {"speedup_pct", "new=1 old=0", "old must not be zero"},
    {"train_hours", "params=1B tokens=20B peak_tflops=989 n_gpus=8 mfu=40", "mfu=40 is a fraction"},
    {"train_hours", "params=1B tokens=20B peak_tflops=989 n_gpus=8 mfu=0", "mfu must not be zero"},
    {"mem_capacity_GiB", "used_GiB=10 pct=120", "pct=120 must be at most 100"},
    {"tree_ring_crossover_bytes", "N=1 latency_us=5 bw_GBps=50", "N=1 must be at least 2"},
    {"node_cost_usd", "days_whole=22.2 usd_per_node_hour=24", "days_whole=22.2 must be a whole number"},
    // words
    {"zero_state_GB", "params_B=7 stage=4 N=64", "stage=4 is none of: 0, 1, 2, 3"},
    {"flops_per_token_dense", "V=8 d=8 L=1 H=1 KV=1 hd=8 f=8 S=8 attn=half",
     "attn=half is none of: full, causal, none"},
    {"min_microbatches", "p=8 v=1 limit_pct=5 denom=wall", "denom=wall is none of: ideal, total"},
    {"params_dense_llama", "V=8 d=8 L=1 H=1 KV=1 hd=8 f=8 tied=maybe", "tied=maybe is none of: true, false"},
    {"loss_scale", "steps=TFX init=1024 grow=2", "steps=TFX must be a trace of T"},
    // between inputs
    {"dp_degree", "world=100 tp=8 pp=2", "world=100 cannot be divided evenly by tp*pp*cp=16"},
    {"tp_col_shape", "d_in=8192 d_out=8190 tp=8", "d_out=8190 cannot be divided evenly by tp=8"},
    {"tp_params", "d_in=8192 d_out=100 tp=3", "d_out=100 cannot be divided evenly by tp=3"},
    {"q_heads_per_gpu", "heads=15 tp=8", "heads=15 cannot be divided evenly by tp=8"},
    {"kv_heads_per_gpu", "kv=8 tp=12", "kv=8 and tp=12: one must divide the other"},
    {"layer_params_gqa", "d=100 dff=10 H=8 KV=8", "d=100 cannot be divided evenly by H=8"},
    {"params_moe_active", "V=8 d=8 L=1 H=4 KV=3 hd=8 E=4 k=2 f=8 tied=true", "H=4 cannot be divided evenly by KV=3"},
    {"params_moe_active", "V=8 d=8 L=1 H=4 KV=4 hd=8 E=4 k=8 f=8 tied=true", "k=8 must not be more than E=4"},
    {"pp_layer_split", "layers=8 p=16", "p=16 must not be more than layers=8"},
    {"mem_slope_bytes_per_token", "gib_a=2 tok_a=100 gib_b=1 tok_b=100", "tok_a and tok_b are both 100"},
    {"step_overhead_two_point", "tok_per_micro_global=1 tok_s_a=1 accum_a=4 tok_s_b=2 accum_b=4", "are both 4"},
    {"optimizer_steps_bsw_equal_buckets", "total_tokens=1 ramp_tokens=2 ga_max=8 tokens_per_micro=1",
     "ramp_tokens=2 must not be more than total_tokens=1"},
    {"predicted_tok_s_accum", "tok_per_micro_global=100 tok_s_accum1=100 overhead_s=2 accum=10",
     "must not be more than tok_per_micro_global=100"},
    // results beyond a double
    {"perplexity", "loss=1000", "too large"},
    {"loss_scale_n_good", "n=5000 init=1 grow=1", "too large"},
};

static Status evaluate_words(const char *quantity, const char *text) {
    char *copy = text_copy(text), *rest = NULL;
    const char *words[CALC_INPUTS_MAX + 4];
    int count = 0;
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    CalcResult result;
    Status status = calc_evaluate(&result, quantity, words, count);
    calc_result_free(&result);
    free(copy);
    return status;
}

static void wrong_inputs_are_named(void **state) {
    (void)state;
    size_t count = sizeof cases / sizeof cases[0];
    for (size_t i = 0; i < count; i++) {
        Status status = evaluate_words(cases[i].quantity, cases[i].words);
        if (!status) fail_msg("%s %s succeeded, expected \"%s\"", cases[i].quantity, cases[i].words, cases[i].part);
        if (!strstr(status_text(status), cases[i].part))
            fail_msg("%s %s: expected \"%s\", got: %s", cases[i].quantity, cases[i].words, cases[i].part,
                     status_text(status));
        assert_int_equal(status_code(status), STATUS_USAGE);
        status_free(status);
    }
    printf("error cases: %zu\n", count);
}

static void input_errors_say_what_the_quantity_takes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const CalcQuantity *quantity = calc_find(cases[i].quantity);
        if (!quantity) continue;
        Status status = evaluate_words(cases[i].quantity, cases[i].words);
        for (int k = 0; k < calc_input_count(quantity); k++)
            assert_non_null(strstr(status_text(status), quantity->inputs[k].name));
        assert_non_null(strstr(status_text(status), " takes "));
        status_free(status);
    }
}

static void every_quantity_without_inputs_says_what_it_needs(void **state) {
    (void)state;
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++) {
            const char *name = calc_subjects[s]->quantities[i].name;
            assert_error(evaluate_words(name, ""), "needs");
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_inputs_are_named),
        cmocka_unit_test(input_errors_say_what_the_quantity_takes),
        cmocka_unit_test(every_quantity_without_inputs_says_what_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
