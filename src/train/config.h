// Configuration of a run. config_table.c holds one row per key (type, default, range, unit, help); parsing, checks,
// --set, the help text and the resolved config.toml all come from that table, so none of them can disagree.
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ConfigTexts { // strings in the config's arena
    const char **items;
    int count;
} ConfigTexts;

typedef struct ConfigNumbers {
    double *items;
    int count;
} ConfigNumbers;

typedef struct ConfigTokens { // "6B" or "20x"
    int64_t count;
    double per_parameter; // of "20x"; 0 when a number was given
} ConfigTokens;

enum { CONFIG_KEYS_MAX = 128 };
#define CONFIG_UNBOUNDED 9.0e18 // as a maximum: none

typedef struct ConfigPlace { // where a value was set
    const char *file;        // NULL: by an option or not at all
    const char *option;      // the text of --set, or NULL
    int line, column;
} ConfigPlace;

typedef struct Config {
    Arena arena;
    const char *file; // NULL when there is none
    struct {
        const char *preset, *config, *init, *arch;
        int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, max_seq;
        double rope_theta, norm_eps, init_std;
        const char *tie_embeddings; // "", "true" or "false": unset follows the preset
        int64_t experts, top_k, expert_ffn;
        bool scale_residual;
        double aux_coef, z_coef, router_bias_rate;
        const char *balance;
    } model;
    struct {
        ConfigTexts train, val;
        ConfigNumbers weights;
        const char *tokenizer;
        bool mask_documents;
        const char *verify;
        int64_t prefetch;
        int64_t seed; // -1: the run's seed
    } data;
    struct {
        const char *name, *runs;
        int64_t seq, micro_batch, grad_accum, batch_tokens, batch_warmup_tokens;
        ConfigTokens tokens;
        int64_t steps;
        double hours;
        const char *precision, *fp8_head, *device;
        bool tf32;
        double loss_scale;
        int64_t loss_scale_steps, loss_check_every;
        double loss_check_bound;
        int64_t seed, threads;
        bool graph;
        double spike_factor;
        int64_t spike_window, max_skips;
    } train;
    struct {
        const char *kind;
        double lr, beta1, beta2, eps, weight_decay, clip;
        const char *lr_rescale;
        int64_t lr_base_batch_tokens;
    } optimizer;
    struct {
        const char *kind;
        int64_t warmup_steps;
        double min_lr_ratio, decay_fraction;
    } schedule;
    struct {
        int64_t data, tensor, pipeline, expert, expert_tensor, context, zero;
        const char *schedule;
        int64_t virtual_stages, layers_per_stage;
        const char *reduce_dtype;
        double expert_headroom;
    } parallelism;
    struct {
        int64_t islands, every;
        double outer_lr, outer_momentum;
        const char *exchange;
    } diloco;
    struct {
        const char *mode;
        int64_t logits_rows;
    } recompute;
    struct {
        double minutes;
        int64_t every, keep_last, keep_every;
        bool keep_best, async, at_end;
    } checkpoint;
    struct {
        int64_t every, windows;
        bool at_start, at_end;
    } eval;
    struct {
        const char *terminal;
        int64_t print_every;
        double peak_tflops;
        int64_t warmup_steps;
        bool log_ranks, tensorboard;
        int64_t histograms;
    } watch;
    struct {
        int64_t every, wait, warmup, active;
    } profile;
    ConfigPlace place[CONFIG_KEYS_MAX];
} Config;

void config_defaults(Config *config);
// Defaults, then the file (NULL: none), then each "section.key=value" of sets; checks types, ranges and unknown names.
Status config_read(Config *config, const char *path, const char *const *sets, int set_count);
Status config_set(Config *config, const char *assignment);
// A copy with its own strings that still knows where each key was set.
Status config_copy(Config *copy, const Config *config);
void config_free(Config *config);

// Checks that need more than one key but neither model nor data.
Status config_check(const Config *config);

// True when the file or an option gave the key ("train.seq").
bool config_given(const Config *config, const char *name);
// Points a failed check at the place where the key was set: file:line:column, or the --set option.
Status config_blame(const Config *config, const char *name, Status status);

void config_write(const Config *config, TextBuffer *out); // every key, readable by config_read
void config_print_help(FILE *file, const char *section);  // NULL: all sections
struct ConfigKey;
void config_describe_key(const struct ConfigKey *row, TextBuffer *out); // "integer, tokens, 2 to 4096; default 1024"
// Hash of what decides the numbers of a run: data, train, optimizer and schedule, without when to stop.
uint64_t config_hash(const Config *config, int64_t batch_tokens);
// "section.key was A and is B, ..." of the keys that change the numbers of a run.
void config_differences(const Config *before, const Config *now, TextBuffer *out);

// ---- the table -----------------------------------------------------------------------------------------------------

typedef enum ConfigType {
    CONFIG_INT,
    CONFIG_COUNT, // integer, or text with a suffix: "500M"
    CONFIG_DOUBLE,
    CONFIG_BOOL,
    CONFIG_TEXT,
    CONFIG_CHOICE,
    CONFIG_TEXTS,
    CONFIG_NUMBERS,
    CONFIG_TOKENS,
} ConfigType;

typedef struct ConfigKey {
    const char *section, *key;
    const char *aliases; // words; "compile.enable" names another section
    ConfigType type;
    size_t offset; // in Config
    const char *fallback;
    double min, max;
    const char *unit;
    const char *choices; // "a|b|c"
    const char *help;
} ConfigKey;

void config_write_value(TextBuffer *out, const Config *config, const ConfigKey *row); // as config_write writes it

typedef struct ConfigSection {
    const char *name, *aliases, *help;
} ConfigSection;

typedef struct ConfigRefusal { // a key of other systems that has no counterpart here, and what to do instead
    const char *section, *key, *hint;
} ConfigRefusal;

extern const ConfigRefusal config_refusals[];
extern const int config_refusal_count;
extern const ConfigKey config_keys[];
extern const int config_key_count;
extern const ConfigSection config_sections[];
extern const int config_section_count;

const char *config_section_name(const char *name); // the name that an alias stands for; NULL: no such section
