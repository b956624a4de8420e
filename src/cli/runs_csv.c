// hearth runs csv: metrics.jsonl as comma-separated values, a row for each line.
#include "base/file.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/runs_commands.h"
#include "watch/metrics_table.h"
#include "watch/run_summary.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MOST = 128 };

typedef struct Columns {
    const char *keys[COLUMNS_MOST];
    int count;
    int64_t printed;
} Columns;

static bool columns_have(const Columns *columns, const char *key) {
    for (int i = 0; i < columns->count; i++)
        if (strcmp(columns->keys[i], key) == 0) return true;
    return false;
}

// Every key whose value is one number or word; steps and validations share theirs.
static void columns_all(Columns *columns) {
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        bool whole = field->type != METRICS_SPLIT && field->type != METRICS_LAYERS;
        if (whole && !columns_have(columns, field->key)) columns->keys[columns->count++] = field->key;
    }
}

static Status columns_choose(Columns *columns, char *list) {
    Columns known = {0};
    columns_all(&known);
    for (char *key = strtok(list, ","); key; key = strtok(NULL, ",")) {
        if (!columns_have(&known, key)) {
            const char *nearest = text_nearest(key, known.keys, (size_t)known.count);
            Status status = status_usage("metrics have no column \"%s\"", key);
            return nearest ? status_hint(status, "did you mean %s?", nearest)
                           : status_hint(status, "hearth runs keys lists them");
        }
        if (!columns_have(columns, key)) columns->keys[columns->count++] = key;
    }
    return columns->count ? NULL : status_usage("--keys names no column");
}

// A value as the line has it: numbers with all their digits.
static void print_line(const json_t *line, void *context) {
    Columns *columns = context;
    if (metrics_line_kind(line) == METRICS_NO_LINE) return;
    columns->printed++;
    for (int i = 0; i < columns->count; i++) {
        const json_t *value = json_object_get(line, columns->keys[i]);
        if (i) putchar(',');
        if (json_is_integer(value))
            printf("%lld", (long long)json_integer_value(value));
        else if (json_is_real(value))
            printf("%.15g", json_real_value(value));
        else if (json_is_boolean(value))
            printf("%d", json_is_true(value));
        else if (json_is_string(value))
            printf("%s", json_string_value(value)); // "full" or "subset"
    }
    putchar('\n');
}

// What is no row is said, also what no reader of metrics takes for a line.
static Status print_lines(const char *path, Columns *columns) {
    int64_t read = 0, lines = 0;
    char *text;
    size_t size;
    TRY(metrics_read_from(path, &read, SIZE_MAX, print_line, columns));
    TRY(file_read_from(&text, &size, path, 0, (size_t)read)); // a run that trains adds lines behind these
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    free(text);
    int64_t skipped = lines - columns->printed;
    if (skipped > 0)
        fprintf(stderr, "%lld line%s of %s skipped: neither a step nor a validation\n", (long long)skipped,
                skipped > 1 ? "s" : "", path);
    return NULL;
}

Status runs_csv(int argc, char **argv) {
    const char *keys = NULL;
    ArgList words;
    bool helped;
    const Arg args[] = {{"--keys", ARG_TEXT, &keys, "A,B,...", "these columns alone, in this order"}};
    const ArgCommand command = {"hearth runs csv RUN [--keys A,B,...]",
                                "Prints metrics.jsonl of a run as comma-separated values: a row for each step and for "
                                "each validation, empty where a line has no such value.",
                                args,
                                ARG_COUNT(args),
                                1,
                                1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        const char *run = words.items[0];
        char *path = path_join(run, "metrics.jsonl"), *list = keys ? text_copy(keys) : NULL;
        Columns columns = {0};
        if (!run_directory_is(run)) status = status_usage("%s is not a run directory: it has no config.toml", run);
        if (!status && list)
            status = columns_choose(&columns, list);
        else
            columns_all(&columns);
        for (int i = 0; i < columns.count && !status; i++)
            printf("%s%c", columns.keys[i], i + 1 < columns.count ? ',' : '\n');
        if (!status) status = print_lines(path, &columns);
        free(path);
        free(list);
    }
    free(words.items);
    return status;
}
