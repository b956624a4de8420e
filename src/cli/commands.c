#include "cli/commands.h"

#include "base/text.h"
#include "cli/args.h"

#include <stdlib.h>
#include <string.h>

static void print_table(const char *program, const char *summary, const Command *table, int count) {
    if (args_help_visitor) {
        args_help_visitor->group(args_help_visitor->context, program, summary, table, count);
        return;
    }
    printf("%s\n\nusage: %s COMMAND [arguments]   (%s COMMAND --help says more)\n\n", summary, program, program);
    for (int i = 0; i < count; i++)
        if (table[i].summary) printf("  %-16s %s\n", table[i].name, table[i].summary);
}

void command_describe(const Command *command) {
    char *words[] = {(char *)command->name, "--help", NULL};
    status_free(command->run(2, words));
}

Status commands_run(const char *program, const char *summary, const Command *table, int count, int argc, char **argv) {
    if (argc < 2) {
        print_table(program, summary, table, count);
        return status_usage("%s needs a command", program);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_table(program, summary, table, count);
        return NULL;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("%s %s\n", program, HEARTH_VERSION);
        return NULL;
    }
    const char **names = xmalloc((size_t)(count + 1) * sizeof *names);
    size_t listed = 0;
    const Command *found = NULL;
    for (int i = 0; i < count; i++) {
        if (table[i].summary) names[listed++] = table[i].name;
        if (strcmp(argv[1], table[i].name) == 0) found = &table[i];
    }
    const char *nearest = found ? NULL : text_nearest(argv[1], names, listed);
    char *list = text_join(names, listed);
    Status status = NULL;
    if (!found) status = status_usage("unknown command \"%s %s\"", program, argv[1]);
    if (nearest) status = status_hint(status, "did you mean \"%s %s\"?", program, nearest);
    status = status_hint(status, "the commands are %s", list);
    free(list);
    free(names);
    return found ? found->run(argc - 1, argv + 1) : status;
}
