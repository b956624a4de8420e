// Writing a configuration: the resolved file, its hash, and the help text; all by the table in config_table.c.
#include "train/config.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- writing -------------------------------------------------------------------------------------------------------

static void write_text(TextBuffer *out, const char *text) {
    text_buffer_add(out, "\"", 1);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            text_buffer_format(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            text_buffer_format(out, "\\u%04x", *at);
        else
            text_buffer_add(out, (const char *)at, 1);
    }
    text_buffer_add(out, "\"", 1);
}

static void write_number(TextBuffer *out, double value) {
    char text[32];
    text_number(text, value);
    text_buffer_format(out, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

void config_write_value(TextBuffer *out, const Config *config, const ConfigKey *row) {
    const void *field = (const char *)config + row->offset;
    switch (row->type) {
    case CONFIG_INT:
    case CONFIG_COUNT: text_buffer_format(out, "%lld", (long long)*(const int64_t *)field); break;
    case CONFIG_DOUBLE: write_number(out, *(const double *)field); break;
    case CONFIG_BOOL: text_buffer_format(out, "%s", *(const bool *)field ? "true" : "false"); break;
    case CONFIG_TEXT:
    case CONFIG_CHOICE: write_text(out, *(const char *const *)field); break;
    case CONFIG_TOKENS: {
        const ConfigTokens *tokens = field;
        char number[32];
        if (tokens->per_parameter > 0)
            text_buffer_format(out, "\"%sx\"", text_number(number, tokens->per_parameter));
        else
            text_buffer_format(out, "%lld", (long long)tokens->count);
        break;
    }
    case CONFIG_TEXTS: {
        const ConfigTexts *list = field;
        text_buffer_add(out, "[", 1);
        for (int i = 0; i < list->count; i++) {
            if (i) text_buffer_add(out, ", ", 2);
            write_text(out, list->items[i]);
        }
        text_buffer_add(out, "]", 1);
        break;
    }
    case CONFIG_NUMBERS: {
        const ConfigNumbers *list = field;
        text_buffer_add(out, "[", 1);
        for (int i = 0; i < list->count; i++) {
            if (i) text_buffer_add(out, ", ", 2);
            write_number(out, list->items[i]);
        }
        text_buffer_add(out, "]", 1);
        break;
    }
    }
}

void config_write(const Config *config, TextBuffer *out) {
    text_buffer_format(out,
                       "# Every key of this run, defaults included. `hearth config --help` says what they mean.\n");
    const char *section = "";
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *row = &config_keys[i];
        if (strcmp(section, row->section) != 0) text_buffer_format(out, "\n[%s]\n", section = row->section);
        text_buffer_format(out, "%s = ", row->key);
        config_write_value(out, config, row);
        text_buffer_format(out, "\n");
    }
}

static bool one_of(const char *word, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0) return true;
    return false;
}

// How the tokens of a step are cut; their number counts, and that follows from all three.
static bool key_cuts_the_batch(const ConfigKey *row) {
    static const char *const keys[] = {"micro_batch", "grad_accum", "batch_tokens"};
    return strcmp(row->section, "train") == 0 && one_of(row->key, keys, sizeof keys / sizeof *keys);
}

// Whether a key changes the numbers of a run. The model's shape is compared by the weights themselves; some keys only
// say where things are or when to stop. What the model's section adds to the objective counts.
static bool key_counts(const ConfigKey *row) {
    static const char *const free_keys[] = {"name",    "runs",      "tokens",           "steps",
                                            "hours",   "prefetch",  "verify",           "graph",
                                            "threads", "max_skips", "loss_check_every", "loss_check_bound"};
    static const char *const sections[] = {"data", "train", "optimizer", "schedule", "diloco"};
    static const char *const objective[] = {"aux_coef", "balance", "z_coef", "router_bias_rate"};
    if (strcmp(row->section, "model") == 0) return one_of(row->key, objective, sizeof objective / sizeof *objective);
    return one_of(row->section, sections, sizeof sections / sizeof *sections) &&
           !one_of(row->key, free_keys, sizeof free_keys / sizeof *free_keys);
}

// Some keys mean nothing without another, and did not count before there were such keys.
static bool key_in_use(const Config *config, const ConfigKey *row) {
    if (strcmp(row->section, "diloco") == 0) return config->diloco.every != 0;
    if (text_starts_with(row->key, "loss_scale")) return strcmp(config->train.precision, "fp16") == 0;
    if (strcmp(row->key, "fp8_head") == 0) return strcmp(config->train.fp8_head, "off") == 0;
    return strcmp(row->key, "tf32") != 0 || config->train.tf32;
}

uint64_t config_hash(const Config *config, int64_t batch_tokens) {
    TextBuffer text = {0};
    text_buffer_format(&text, "batch=%lld\n", (long long)batch_tokens);
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *row = &config_keys[i];
        if (!key_counts(row) || key_cuts_the_batch(row)) continue;
        if (!key_in_use(config, row)) continue;
        text_buffer_format(&text, "%s.%s=", row->section, row->key);
        config_write_value(&text, config, row);
        text_buffer_format(&text, "\n");
    }
    uint64_t hash = XXH64(text.data, text.length, 0);
    text_buffer_free(&text);
    return hash;
}

void config_differences(const Config *before, const Config *now, TextBuffer *out) {
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *row = &config_keys[i];
        TextBuffer old = {0}, new = {0};
        config_write_value(&old, before, row);
        config_write_value(&new, now, row);
        if (key_counts(row) && (old.length != new.length || memcmp(old.data, new.data, old.length) != 0))
            text_buffer_format(out, "%s%s.%s was %s and is %s", out->length ? ", " : "", row->section, row->key,
                               old.data, new.data);
        text_buffer_free(&old);
        text_buffer_free(&new);
    }
}

// ---- help ----------------------------------------------------------------------------------------------------------

static const char *type_text(const ConfigKey *row) {
    switch (row->type) {
    case CONFIG_INT: return "integer";
    case CONFIG_COUNT: return "count";
    case CONFIG_DOUBLE: return "number";
    case CONFIG_BOOL: return "true|false";
    case CONFIG_TEXT: return "text";
    case CONFIG_CHOICE: return row->choices[0] == '|' ? row->choices + 1 : row->choices;
    case CONFIG_TEXTS: return "list of text";
    case CONFIG_NUMBERS: return "list of numbers";
    case CONFIG_TOKENS: return "count or \"20x\"";
    }
    return "";
}

void config_describe_key(const ConfigKey *row, TextBuffer *out) {
    text_buffer_format(out, "%s", type_text(row));
    if (row->unit[0]) text_buffer_format(out, ", %s", row->unit);
    if (row->type == CONFIG_INT || row->type == CONFIG_COUNT || row->type == CONFIG_DOUBLE) {
        if (row->max >= CONFIG_UNBOUNDED)
            text_buffer_format(out, ", at least %.10g", row->min);
        else
            text_buffer_format(out, ", %.10g to %.10g", row->min, row->max);
    }
    text_buffer_format(out, "; default %s", row->fallback[0] ? row->fallback : "none");
}

static void print_key(FILE *file, const ConfigKey *row) {
    TextBuffer about = {0};
    config_describe_key(row, &about);
    fprintf(file, "  %-20s %s\n", row->key, about.data);
    fprintf(file, "  %-20s   %s\n", "", row->help);
    if (row->aliases[0]) fprintf(file, "  %-20s   also written: %s\n", "", row->aliases);
    text_buffer_free(&about);
}

void config_print_help(FILE *file, const char *section) {
    const char *known = section ? config_section_name(section) : NULL;
    for (int s = 0; s < config_section_count; s++) {
        const ConfigSection *group = &config_sections[s];
        if (known && strcmp(known, group->name) != 0) continue;
        fprintf(file, "[%s]  %s\n", group->name, group->help);
        if (group->aliases[0]) fprintf(file, "  also written: %s\n", group->aliases);
        for (int i = 0; i < config_key_count; i++)
            if (strcmp(config_keys[i].section, group->name) == 0) print_key(file, &config_keys[i]);
        fprintf(file, "\n");
    }
    fprintf(file, "Any key can be given on the command line: --set section.key=value\n");
}
