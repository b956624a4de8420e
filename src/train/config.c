// Reading and checking a configuration by the table in config_table.c.
#include "train/config.h"

#include "base/file.h"
#include "base/installed.h"
#include "base/toml.h"
#include "base/utf8.h"
#include "ops/ops.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- names ---------------------------------------------------------------------------------------------------------

static bool word_in(const char *words, const char *word, size_t length) {
    for (const char *at = words; *at;) {
        size_t span = strcspn(at, " ");
        if (span == length && strncmp(at, word, length) == 0) return true;
        at += span;
        at += strspn(at, " ");
    }
    return false;
}

const char *config_section_name(const char *name) {
    for (int i = 0; i < config_section_count; i++)
        if (strcmp(config_sections[i].name, name) == 0 || word_in(config_sections[i].aliases, name, strlen(name)))
            return config_sections[i].name;
    return NULL;
}

// Row of a key by its own name or an alias; -1 when there is none. `section` is a canonical name.
static int key_find(const char *section, const char *key) {
    char dotted[256];
    snprintf(dotted, sizeof dotted, "%s.%s", section, key);
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *row = &config_keys[i];
        if (strcmp(row->section, section) == 0 &&
            (strcmp(row->key, key) == 0 || word_in(row->aliases, key, strlen(key))))
            return i;
        if (word_in(row->aliases, dotted, strlen(dotted))) return i;
    }
    return -1;
}

static int key_by_name(const char *name) {
    const char *dot = strchr(name, '.');
    if (!dot) return -1;
    char *section = text_copy_n(name, (size_t)(dot - name));
    const char *known = config_section_name(section);
    int row = known ? key_find(known, dot + 1) : -1;
    free(section);
    return row;
}

static Status unknown_key(const char *section, const char *key) {
    const char *known[CONFIG_KEYS_MAX];
    size_t count = 0;
    int elsewhere = -1;
    for (int i = 0; i < config_key_count; i++) {
        if (strcmp(config_keys[i].section, section) == 0)
            known[count++] = config_keys[i].key;
        else if (strcmp(config_keys[i].key, key) == 0)
            elsewhere = i;
    }
    for (int i = 0; i < config_refusal_count; i++)
        if (strcmp(config_refusals[i].section, section) == 0 && strcmp(config_refusals[i].key, key) == 0)
            return status_hint(status_usage("[%s] has no key \"%s\"", section, key), "%s", config_refusals[i].hint);
    Status status = status_usage("unknown key \"%s\" in [%s]", key, section);
    const char *nearest = text_nearest(key, known, count);
    if (elsewhere >= 0) return status_hint(status, "%s is a key of [%s]", key, config_keys[elsewhere].section);
    if (nearest) return status_hint(status, "did you mean \"%s\"?", nearest);
    char *list = text_join(known, count);
    status = status_hint(status, "[%s] has %s; `hearth config --help %s` explains them", section, list, section);
    free(list);
    return status;
}

static Status unknown_section(const char *name) {
    const char *known[64];
    size_t count = 0;
    for (int i = 0; i < config_section_count; i++)
        known[count++] = config_sections[i].name;
    const char *nearest = text_nearest(name, known, count);
    Status status = status_usage("unknown section [%s]", name);
    if (nearest) return status_hint(status, "did you mean [%s]?", nearest);
    char *list = text_join(known, count);
    status = status_hint(status, "the sections are %s", list);
    free(list);
    return status;
}

// ---- values --------------------------------------------------------------------------------------------------------

static bool toml_number(const TomlValue *value, double *number) {
    if (value->type == TOML_INTEGER)
        *number = (double)value->integer;
    else if (value->type == TOML_FLOAT)
        *number = value->number;
    else
        return false;
    return true;
}

static Status wrong_type(const ConfigKey *row, const char *wanted, const TomlValue *value) {
    return status_usage("%s.%s takes %s, not %s", row->section, row->key, wanted, toml_type_name(value->type));
}

static Status check_range(const ConfigKey *row, double value) {
    if (value >= row->min && value <= row->max) return NULL;
    const char *space = row->unit[0] ? " " : "";
    if (isnan(value)) return status_usage("%s.%s must be a number", row->section, row->key);
    if (value < row->min)
        return status_usage("%s.%s must be at least %.10g%s%s, not %.10g", row->section, row->key, row->min, space,
                            row->unit, value);
    return status_usage("%s.%s must be at most %.10g%s%s, not %.10g", row->section, row->key, row->max, space,
                        row->unit, value);
}

static Status take_integer(const ConfigKey *row, const TomlValue *value, double number, int64_t *out) {
    TRY(check_range(row, number));
    if (number != floor(number))
        return status_usage("%s.%s takes a whole number, not %g", row->section, row->key, number);
    *out = value->type == TOML_INTEGER ? value->integer : (int64_t)number;
    return NULL;
}

static Status take_int(const ConfigKey *row, const TomlValue *value, int64_t *out) {
    double number;
    if (row->type == CONFIG_COUNT && value->type == TOML_STRING) {
        if (!text_to_count(value->text, &number))
            return status_usage("%s.%s takes a count such as 1_000_000 or \"500M\", not \"%s\"", row->section, row->key,
                                value->text);
    } else if (!toml_number(value, &number)) {
        return wrong_type(row, "an integer", value);
    }
    return take_integer(row, value, number, out);
}

static Status take_tokens(const ConfigKey *row, const TomlValue *value, ConfigTokens *out) {
    double number = 0;
    *out = (ConfigTokens){0};
    if (value->type == TOML_STRING) {
        size_t length = strlen(value->text);
        if (length && value->text[length - 1] == 'x') {
            char *digits = text_copy_n(value->text, length - 1);
            bool fine = text_to_double(digits, &number) && number > 0 && number < 1e9;
            free(digits);
            if (fine) {
                out->per_parameter = number;
                return NULL;
            }
        }
        if (!text_to_count(value->text, &number))
            return status_usage("%s.%s takes a number, \"6B\" or \"20x\" (tokens per parameter), not \"%s\"",
                                row->section, row->key, value->text);
    } else if (!toml_number(value, &number)) {
        return wrong_type(row, "a number or a string such as \"6B\"", value);
    }
    return take_integer(row, value, number, &out->count);
}

static bool choice_known(const char *choices, const char *text) {
    for (const char *at = choices;; at++) {
        size_t span = strcspn(at, "|");
        if (span == strlen(text) && strncmp(at, text, span) == 0) return true;
        at += span;
        if (!*at) return false;
    }
}

// A word of the command line can be anything; what config.toml cannot hold would end the run's being resumed.
static Status check_text(const ConfigKey *row, const TomlValue *value) {
    if (memchr(value->text, 0, value->length))
        return status_usage("%s.%s holds a NUL character", row->section, row->key);
    if (utf8_first_malformed(value->text, value->length) != value->length)
        return status_usage("%s.%s is not UTF-8 text", row->section, row->key);
    return NULL;
}

static Status take_text(Config *config, const ConfigKey *row, const TomlValue *value, const char **out) {
    const char *text = value->text;
    if (value->type == TOML_BOOLEAN && row->type == CONFIG_CHOICE)
        text = value->boolean ? "true" : "false";
    else if (value->type != TOML_STRING)
        return wrong_type(row, "a string", value);
    else
        TRY(check_text(row, value));
    if (row->type == CONFIG_CHOICE && !choice_known(row->choices, text))
        return status_usage("%s.%s must be one of %s, not \"%s\"", row->section, row->key,
                            row->choices[0] == '|' ? row->choices + 1 : row->choices, text);
    *out = arena_copy(&config->arena, text, strlen(text));
    return NULL;
}

static Status take_list(Config *config, const ConfigKey *row, const TomlValue *value) {
    bool texts = row->type == CONFIG_TEXTS;
    const TomlValue *const one[1] = {value};
    const TomlValue *const *items = value->type == TOML_ARRAY ? (const TomlValue *const *)value->values : one;
    size_t count = value->type == TOML_ARRAY ? value->length : 1;
    const char *wanted = texts ? "a list of strings" : "a list of numbers";
    if (texts) {
        ConfigTexts *out = (ConfigTexts *)((char *)config + row->offset);
        out->items = arena_alloc(&config->arena, (count + 1) * sizeof *out->items);
        for (size_t i = 0; i < count; i++) {
            if (items[i]->type != TOML_STRING) return wrong_type(row, wanted, items[i]);
            TRY(check_text(row, items[i]));
            out->items[i] = arena_copy(&config->arena, items[i]->text, items[i]->length);
        }
        out->count = (int)count;
        return NULL;
    }
    ConfigNumbers *out = (ConfigNumbers *)((char *)config + row->offset);
    out->items = arena_alloc(&config->arena, (count + 1) * sizeof *out->items);
    for (size_t i = 0; i < count; i++) {
        if (!toml_number(items[i], &out->items[i])) return wrong_type(row, wanted, items[i]);
        TRY(check_range(row, out->items[i]));
    }
    out->count = (int)count;
    return NULL;
}

static Status key_take(Config *config, int index, const TomlValue *value) {
    const ConfigKey *row = &config_keys[index];
    void *field = (char *)config + row->offset;
    switch (row->type) {
    case CONFIG_INT:
    case CONFIG_COUNT: return take_int(row, value, field);
    case CONFIG_TOKENS: return take_tokens(row, value, field);
    case CONFIG_TEXT:
    case CONFIG_CHOICE: return take_text(config, row, value, field);
    case CONFIG_TEXTS:
    case CONFIG_NUMBERS: return take_list(config, row, value);
    case CONFIG_BOOL:
        if (value->type != TOML_BOOLEAN) return wrong_type(row, "true or false", value);
        *(bool *)field = value->boolean;
        return NULL;
    case CONFIG_DOUBLE:
        if (!toml_number(value, field)) return wrong_type(row, "a number", value);
        return check_range(row, *(double *)field);
    }
    return NULL;
}

// A value written without a file: TOML where it reads as TOML, else a bare word is a string.
static Status key_take_text(Config *config, int index, const char *text) {
    const ConfigKey *row = &config_keys[index];
    bool wants_text = row->type == CONFIG_TEXT || row->type == CONFIG_CHOICE || row->type == CONFIG_TEXTS;
    bool bare = text[0] != '"' && text[0] != '\'' && text[0] != '[';
    TomlValue word = {.type = TOML_STRING, .text = text, .length = strlen(text)};
    if (wants_text && bare) return key_take(config, index, &word);
    char *line = text_format("value = %s", text);
    Toml toml;
    Status status = toml_parse(&toml, line, strlen(line), "value");
    free(line);
    if (status) {
        status_free(status);
        double number; // one that TOML has no room for is still one
        bool numeric = row->type == CONFIG_INT || row->type == CONFIG_COUNT || row->type == CONFIG_DOUBLE;
        if (numeric && text_to_double(text, &number)) word = (TomlValue){.type = TOML_FLOAT, .number = number};
        return key_take(config, index, &word);
    }
    status = key_take(config, index, toml_get(toml.root, "value"));
    toml_free(&toml);
    return status;
}

// ---- reading -------------------------------------------------------------------------------------------------------

void config_defaults(Config *config) {
    *config = (Config){0};
    for (int i = 0; i < config_key_count; i++) {
        Status status = key_take_text(config, i, config_keys[i].fallback);
        assert(!status); // the table's own defaults fit its types and ranges
        status_free(status);
    }
}

// torchtitan's shard degree says two things: how many data-parallel ranks there are, and that weights, gradients and
// moments are cut over them (FSDP). A ZeRO stage that was given stands.
static void take_sharding(Config *config, const char *key) {
    if (strcmp(key, "data_parallel_shard_degree") == 0 && config->parallelism.data != 1 &&
        !config_given(config, "parallelism.zero"))
        config->parallelism.zero = 3;
}

static Status section_take(Config *config, const char *section, const TomlValue *table, const char *file) {
    for (size_t i = 0; i < table->length; i++) {
        const TomlValue *value = table->values[i];
        int index = key_find(section, table->keys[i]);
        if (index < 0) return status_at(unknown_key(section, table->keys[i]), file, value->line, value->column);
        ConfigPlace *place = &config->place[index];
        if (place->file) {
            Status twice = status_usage("%s.%s is given twice: \"%s\" is another name of it",
                                        config_keys[index].section, config_keys[index].key, table->keys[i]);
            return status_hint(status_at(twice, file, value->line, value->column), "the other is at line %d",
                               place->line);
        }
        *place = (ConfigPlace){.file = file, .line = value->line, .column = value->column};
        TRY(status_at(key_take(config, index, value), file, value->line, value->column));
        take_sharding(config, table->keys[i]);
    }
    return NULL;
}

static Status file_take(Config *config, const TomlValue *root) {
    for (size_t i = 0; i < root->length; i++) {
        const TomlValue *table = root->values[i];
        const char *section = config_section_name(root->keys[i]);
        Status status = NULL;
        if (!section)
            status = unknown_section(root->keys[i]);
        else if (table->type != TOML_TABLE)
            status = status_usage("[%s] is a section, not %s", section, toml_type_name(table->type));
        if (status) return status_at(status, config->file, table->line, table->column);
        TRY(section_take(config, section, table, config->file));
    }
    return NULL;
}

// The same key by the same name may be given again, and the last one holds; by two names it is a mistake.
static Status check_same_name(const Config *config, int index, const char *assignment, const char *equals) {
    const char *before = config->place[index].option;
    size_t length = (size_t)(equals - assignment) + 1;
    if (!before || strncmp(before, assignment, length) == 0) return NULL;
    return status_hint(
        status_usage("%s.%s is given twice, by two of its names", config_keys[index].section, config_keys[index].key),
        "the other is --set %s", before);
}

Status config_set(Config *config, const char *assignment) {
    const char *equals = strchr(assignment, '=');
    const char *dot = strchr(assignment, '.');
    if (!equals || !dot || dot > equals)
        return status_hint(status_usage("--set takes section.key=value, not \"%s\"", assignment),
                           "for example --set train.micro_batch=16");
    char *section = text_copy_n(assignment, (size_t)(dot - assignment));
    char *key = text_copy_n(dot + 1, (size_t)(equals - dot - 1));
    const char *known = config_section_name(section);
    Status status = NULL;
    int index = -1;
    if (!known)
        status = unknown_section(section);
    else if ((index = key_find(known, key)) < 0)
        status = unknown_key(known, key);
    else {
        TRY_GOTO(check_same_name(config, index, assignment, equals), done);
        config->place[index] = (ConfigPlace){.option = arena_copy(&config->arena, assignment, strlen(assignment))};
        status = key_take_text(config, index, equals + 1);
        if (!status) take_sharding(config, key);
    }
done:
    free(section);
    free(key);
    return status ? status_context(status, "--set %s", assignment) : NULL;
}

Status config_read(Config *config, const char *path, const char *const *sets, int set_count) {
    config_defaults(config);
    Status status = NULL;
    if (path) {
        bool ours = text_starts_with(path, "configs/") && !file_exists(path); // those that hearth comes with
        char *installed = ours ? installed_file(path) : NULL;
        if (installed) path = installed;
        config->file = arena_copy(&config->arena, path, strlen(path));
        free(installed);
        Toml toml;
        status = toml_read_file(&toml, config->file);
        if (!status) {
            status = file_take(config, toml.root);
            toml_free(&toml);
        }
    }
    for (int i = 0; i < set_count && !status; i++)
        status = config_set(config, sets[i]);
    if (!status) status = config_check(config);
    if (status) config_free(config);
    return status;
}

static const char *copy_text(Config *copy, const char *text) {
    return text ? arena_copy(&copy->arena, text, strlen(text)) : NULL;
}

static void copy_value(Config *copy, const ConfigKey *row) {
    void *field = (char *)copy + row->offset;
    if (row->type == CONFIG_TEXT || row->type == CONFIG_CHOICE) {
        const char **text = field;
        *text = copy_text(copy, *text);
    } else if (row->type == CONFIG_TEXTS) {
        ConfigTexts *list = field;
        const char **items = arena_alloc(&copy->arena, ((size_t)list->count + 1) * sizeof *items);
        for (int i = 0; i < list->count; i++)
            items[i] = copy_text(copy, list->items[i]);
        list->items = items;
    } else if (row->type == CONFIG_NUMBERS) {
        ConfigNumbers *list = field;
        double *items = arena_alloc(&copy->arena, ((size_t)list->count + 1) * sizeof *items);
        if (list->count) memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
    }
}

Status config_copy(Config *copy, const Config *config) {
    *copy = *config;
    copy->arena = (Arena){0};
    copy->file = copy_text(copy, config->file);
    for (int i = 0; i < config_key_count; i++) {
        copy_value(copy, &config_keys[i]);
        copy->place[i].file = copy_text(copy, config->place[i].file);
        copy->place[i].option = copy_text(copy, config->place[i].option);
    }
    return config_check(copy);
}

void config_free(Config *config) {
    arena_free(&config->arena);
    *config = (Config){0};
}

bool config_given(const Config *config, const char *name) {
    int index = key_by_name(name);
    assert(index >= 0);
    return config->place[index].file || config->place[index].option;
}

Status config_blame(const Config *config, const char *name, Status status) {
    int index = key_by_name(name);
    assert(index >= 0);
    if (!status) return NULL;
    const ConfigPlace *place = &config->place[index];
    if (place->option) return status_context(status, "--set %s", place->option);
    if (place->file) return status_at(status, place->file, place->line, place->column);
    if (config->file) return status_at(status, config->file, 0, 0);
    return status;
}

// ---- checks over several keys --------------------------------------------------------------------------------------

static Status check_batch(const Config *config) {
    if (config->train.batch_tokens && config_given(config, "train.grad_accum") && config->train.grad_accum > 1)
        return config_blame(config, "train.batch_tokens",
                            status_hint(status_usage("train.batch_tokens and train.grad_accum both set the batch"),
                                        "give one of them; micro_batch may stand beside either"));
    if (config->train.batch_tokens && config->train.batch_tokens < config->train.seq)
        return config_blame(config, "train.batch_tokens",
                            status_usage("train.batch_tokens = %lld is less than one sequence of %lld tokens",
                                         (long long)config->train.batch_tokens, (long long)config->train.seq));
    if (strcmp(config->optimizer.lr_rescale, "none") != 0 && !config->optimizer.lr_base_batch_tokens)
        return config_blame(
            config, "optimizer.lr_rescale",
            status_hint(status_usage("optimizer.lr_rescale needs to know which batch lr was chosen for"),
                        "set optimizer.lr_base_batch_tokens"));
    return NULL;
}

static Status check_model(const Config *config) {
    int sources = (config->model.preset[0] != 0) + (config->model.config[0] != 0) + (config->model.init[0] != 0);
    const char *last = config->model.init[0] ? "model.init" : config->model.config[0] ? "model.config" : "model.preset";
    if (sources > 1)
        return config_blame(config, last,
                            status_usage("model.preset, model.config and model.init each give the model: use one"));
    int64_t heads = config->model.heads, kv_heads = config->model.kv_heads;
    if (heads && kv_heads && heads % kv_heads)
        return config_blame(config, "model.heads",
                            status_usage("model.heads = %lld does not divide by model.kv_heads = %lld",
                                         (long long)heads, (long long)kv_heads));
    if (heads && config->model.hidden && !config->model.head_dim && !sources && config->model.hidden % heads)
        return config_blame(config, "model.hidden",
                            status_hint(status_usage("model.hidden = %lld does not divide by model.heads = %lld",
                                                     (long long)config->model.hidden, (long long)heads),
                                        "or set model.head_dim"));
    if (config->model.head_dim % 2)
        return config_blame(config, "model.head_dim",
                            status_usage("model.head_dim = %lld is odd, but rotary embedding turns pairs",
                                         (long long)config->model.head_dim));
    if (config->model.experts && config->model.top_k > config->model.experts)
        return config_blame(config, "model.top_k",
                            status_usage("model.top_k = %lld is more than model.experts = %lld",
                                         (long long)config->model.top_k, (long long)config->model.experts));
    return NULL;
}

static Status check_precision(const Config *config) {
    const char *precision = config->train.precision;
    int exponent;
    if (frexp(config->train.loss_scale, &exponent) != 0.5)
        return config_blame(
            config, "train.loss_scale",
            status_hint(status_usage("train.loss_scale = %.9g is no power of two", config->train.loss_scale),
                        "%.0f is: such a factor rounds nothing", ldexp(0.5, exponent)));
    if (config->train.loss_check_every && strcmp(precision, "fp8") != 0)
        return config_blame(
            config, "train.loss_check_every",
            status_hint(status_usage("train.loss_check_every compares FP8 with bf16, and this run is %s", precision),
                        "leave it out, or set train.precision = \"fp8\""));
    if (config->train.tf32 && strcmp(precision, "fp32") != 0)
        return config_blame(
            config, "train.tf32",
            status_hint(status_usage("train.tf32 is about products of fp32, and this run is %s", precision),
                        "leave it out, or set train.precision = \"fp32\""));
    return NULL;
}

Status config_check(const Config *config) {
    TRY(check_model(config));
    TRY(check_batch(config));
    if (config->diloco.islands > 1 && !config->diloco.every)
        return config_blame(config, "diloco.islands",
                            status_hint(status_usage("diloco.islands = %lld, and nothing says when they meet",
                                                     (long long)config->diloco.islands),
                                        "set diloco.every to a number of steps, e.g. 30; ranks that meet in every step "
                                        "are data-parallel ones"));
    if (config->data.weights.count && config->data.weights.count != config->data.train.count)
        return config_blame(config, "data.weights",
                            status_usage("data.weights has %d entries and data.train has %d",
                                         config->data.weights.count, config->data.train.count));
    for (int i = 0; i < config->data.weights.count; i++)
        if (!(config->data.weights.items[i] > 0))
            return config_blame(config, "data.weights", status_usage("data.weights must all be above 0"));
    if (config->train.steps && config->schedule.warmup_steps > config->train.steps)
        return config_blame(config, "schedule.warmup_steps",
                            status_usage("schedule.warmup_steps = %lld is longer than the run of %lld steps",
                                         (long long)config->schedule.warmup_steps, (long long)config->train.steps));
    if (config->train.spike_factor > 0 && config->train.spike_factor <= 1)
        return config_blame(
            config, "train.spike_factor",
            status_usage("train.spike_factor = %g would skip ordinary steps; it is above 1, or 0 for none",
                         config->train.spike_factor));
    TRY(check_precision(config));
    const char *device = config->train.device;
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0 &&
        device_ordinal(device) < 0)
        return config_blame(config, "train.device",
                            status_usage("train.device must be auto, cpu, cuda or cuda:N, not \"%s\"", device));
    if (strcmp(config->train.name, ".") == 0 || strcmp(config->train.name, "..") == 0)
        return config_blame(
            config, "train.name",
            status_usage("train.name = \"%s\" is no name for a directory of its own", config->train.name));
    if (strchr(config->train.name, '/'))
        return config_blame(
            config, "train.name",
            status_hint(status_usage("train.name is a name, not a path"), "train.runs is the directory"));
    return NULL;
}
