// hearth man: the manual pages, made from the tables that --help and the configuration come from. hearth(1) lists the
// commands and tells what holds for all; each command has a page of its own, with its sub-commands.
#include "base/file.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "train/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *meaning;
} man_environment[] = {
    {"HEARTH_THREADS", "threads of a process (default: all cores; train.threads goes before it)"},
    {"HEARTH_CPU", "instruction set: v1 (any x86-64), v3 (AVX2) or v4 (AVX-512); default: the best that the CPU has"},
    {"HEARTH_CPU_BF16", "products of bf16 on a CPU: amx or avx512 (AVX512-BF16), its own instructions, or 0, floats; "
                        "default: the first it has"},
    {"HEARTH_HARDWARE", "the hardware catalogue (default: configs/hardware.toml here, or the installed one)"},
    {"HEARTH_MACHINE", "what hearth bench machine has measured (default: ~/.config/hearth/machine.toml)"},
    {"HEARTH_HISTORY", "outcomes of runs, for predictions (default: ~/.local/share/hearth/history.jsonl); empty: none"},
    {"HEARTH_CALIBRATION",
     "off: predictions leave the outcomes of earlier runs aside; always: runs of any length teach them"},
    {"HEARTH_TUNE_CACHE", "choices of GPU kernels (default: ~/.cache/hearth/tune.txt); empty: none are kept"},
    {"HEARTH_LOG", "error, warn, info or debug: what goes to standard error"},
    {"HEARTH_MPIRUN", "the mpirun that --ranks starts"},
    {"HEARTH_WATCH_SECONDS", "how long a rank may wait for another before all are ended"},
    {"HF_ENDPOINT, HF_TOKEN", "the Hugging Face hub, or a mirror, and the right to read there, for hearth data pull"},
};

static const struct {
    const char *code, *meaning;
} man_exit_codes[] = {
    {"0", "success"},
    {"1", "it failed while it ran"},
    {"2", "the request was wrong: an option, a configuration, a file that is not there"},
    {"129, 130, 143", "a signal ended a training, after its checkpoint"},
};

// Text that troff takes as it is. Options have hyphens that can be searched for and copied.
static void put(TextBuffer *page, const char *text) {
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) text_buffer_format(page, "\\&");
        if (line_start && *text == ' ') continue; // a new line would begin there
        if (*text == '\\')
            text_buffer_format(page, "\\e");
        else if (*text == '-')
            text_buffer_format(page, "\\-");
        else
            text_buffer_format(page, "%c", *text);
        line_start = *text == '\n';
    }
}

static void put_term(TextBuffer *page, const char *term, const char *value, const char *meaning) {
    text_buffer_format(page, ".TP\n\\fB");
    put(page, term);
    text_buffer_format(page, "\\fR");
    if (value) {
        text_buffer_format(page, " \\fI");
        put(page, value);
        text_buffer_format(page, "\\fR");
    }
    text_buffer_format(page, "\n");
    put(page, meaning);
    text_buffer_format(page, "\n");
}

static void put_head(TextBuffer *page, const char *name, const char *summary) {
    char *upper = text_copy(name);
    for (char *c = upper; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    text_buffer_format(page, ".TH \"");
    put(page, upper);
    text_buffer_format(page, "\" 1 \"\" \"hearth %s\" \"hearth\"\n.SH NAME\n", HEARTH_VERSION);
    put(page, name);
    text_buffer_format(page, " \\- ");
    put(page, summary);
    text_buffer_format(page, "\n");
    free(upper);
}

// "hearth a X | hearth a Y" and lines of their own are alternatives.
static void put_usage(TextBuffer *page, const char *usage) {
    for (bool more = true; more;) {
        const char *bar = strstr(usage, " | hearth "), *line = strchr(usage, '\n');
        const char *end = bar && (!line || bar < line) ? bar : line;
        size_t length = end ? (size_t)(end - usage) : strlen(usage);
        char *one = text_format("%.*s", (int)length, usage);
        put(page, one);
        text_buffer_format(page, "\n");
        free(one);
        more = end;
        if (more) {
            text_buffer_format(page, ".br\n");
            usage = end + (end == bar ? strlen(" | ") : 1);
            usage += strspn(usage, " ");
        }
    }
}

// ---- a command's page -----------------------------------------------------------------------------------------------

typedef struct ManPage {
    TextBuffer text;
    TextBuffer commands; // its last part
    bool inside;         // of a group: a section of its page
} ManPage;

static void page_command(void *context, const ArgCommand *command) {
    ManPage *page = context;
    if (!page->inside) text_buffer_format(&page->text, ".SH SYNOPSIS\n");
    put_usage(&page->text, command->usage);
    text_buffer_format(&page->text, page->inside ? ".PP\n" : ".SH DESCRIPTION\n");
    put(&page->text, command->summary);
    text_buffer_format(&page->text, "\n");
    if (command->arg_count && !page->inside) text_buffer_format(&page->text, ".SH OPTIONS\n");
    for (int i = 0; i < command->arg_count; i++) {
        const Arg *arg = &command->args[i];
        char *name =
            arg->kind == ARG_INT_IF_GIVEN ? text_format("%s[=%s]", arg->name, arg->value_name) : text_copy(arg->name);
        put_term(&page->text, name, arg_takes_next(arg) ? arg->value_name : NULL, arg->help);
        free(name);
    }
}

static void page_group(void *context, const char *program, const char *summary, const Command *table, int count) {
    ManPage *page = context;
    if (summary[0]) {
        text_buffer_format(&page->text, ".SH SYNOPSIS\n");
        put(&page->text, program);
        text_buffer_format(&page->text, " \\fICOMMAND\\fR [\\fIarguments\\fR]\n.SH DESCRIPTION\n");
        put(&page->text, summary);
        text_buffer_format(&page->text, "\n");
    }
    text_buffer_format(&page->commands, ".SH COMMANDS\n");
    for (int i = 0; i < count; i++) {
        ManPage part = {.inside = true};
        const HelpVisitor *outside = args_help_visitor, inside = {page_group, page_command, &part};
        args_help_visitor = &inside;
        command_describe(&table[i]);
        args_help_visitor = outside;
        text_buffer_format(&page->commands, ".SS \"%s ", program);
        put(&page->commands, table[i].name);
        text_buffer_format(&page->commands, "\"\n");
        put(&page->commands, table[i].summary);
        text_buffer_format(&page->commands, "\n.PP\n%s", part.text.data);
        text_buffer_free(&part.text);
    }
}

static void put_config_keys(TextBuffer *page) {
    text_buffer_format(page, ".SH CONFIGURATION\n");
    put(page,
        "A run is described by a TOML file of these sections and keys. Each can be given on the command line too:\n"
        "--set section.key=value\n");
    for (int s = 0; s < config_section_count; s++) {
        text_buffer_format(page, ".SS [%s]\n", config_sections[s].name);
        put(page, config_sections[s].help);
        text_buffer_format(page, "\n");
        for (int i = 0; i < config_key_count; i++) {
            if (strcmp(config_keys[i].section, config_sections[s].name) != 0) continue;
            TextBuffer about = {0};
            config_describe_key(&config_keys[i], &about);
            put_term(page, config_keys[i].key, about.data, config_keys[i].help);
            text_buffer_free(&about);
        }
    }
}

static void command_page(TextBuffer *out, const Command *command) {
    ManPage page = {0};
    HelpVisitor visitor = {page_group, page_command, &page};
    char *name = text_format("hearth-%s", command->name);
    put_head(&page.text, name, command->summary);
    args_help_visitor = &visitor;
    command_describe(command);
    args_help_visitor = NULL;
    if (page.commands.data) text_buffer_format(&page.text, "%s", page.commands.data);
    text_buffer_free(&page.commands);
    if (command->run == cmd_config) put_config_keys(&page.text);
    text_buffer_format(&page.text, ".SH SEE ALSO\n.BR hearth (1)\n");
    free(name);
    *out = page.text;
}

// ---- hearth(1) ------------------------------------------------------------------------------------------------------

static void overview_page(TextBuffer *page) {
    put_head(page, "hearth", "pretrain language models: plan, prepare, train, explain");
    text_buffer_format(page, ".SH SYNOPSIS\nhearth \\fICOMMAND\\fR [\\fIarguments\\fR]\n.br\nhearth \\-\\-version\n"
                             ".SH DESCRIPTION\n");
    put(page, "hearth pretrains language models on a CPU, a GPU or many: it says beforehand what a run needs and how "
              "long it\n"
              "takes, turns text into tokens, trains, and explains afterwards where the time went.\n"
              "Each command has a page of its own: man hearth-train. hearth COMMAND --help says the same.\n");
    text_buffer_format(page, ".SH COMMANDS\n");
    for (int i = 0; i < hearth_command_count; i++)
        if (hearth_commands[i].summary) put_term(page, hearth_commands[i].name, NULL, hearth_commands[i].summary);
    text_buffer_format(page, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof man_environment / sizeof man_environment[0]; i++)
        put_term(page, man_environment[i].name, NULL, man_environment[i].meaning);
    text_buffer_format(page, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof man_exit_codes / sizeof man_exit_codes[0]; i++)
        put_term(page, man_exit_codes[i].code, NULL, man_exit_codes[i].meaning);
    text_buffer_format(page, ".SH SEE ALSO\n");
    for (int i = 0, left = hearth_command_count - 1; i < hearth_command_count; i++, left--)
        if (hearth_commands[i].summary)
            text_buffer_format(page, ".BR hearth\\-%s (1)%s\n", hearth_commands[i].name, left > 1 ? "," : "");
}

static Status page_of(TextBuffer *page, const char *name) {
    if (!name) {
        overview_page(page);
        return NULL;
    }
    for (int i = 0; i < hearth_command_count; i++)
        if (hearth_commands[i].summary && strcmp(hearth_commands[i].name, name) == 0) {
            command_page(page, &hearth_commands[i]);
            return NULL;
        }
    return status_hint(status_usage("there is no command \"%s\"", name), "hearth --help lists them");
}

static Status write_page(const char *folder, const char *name) { // NULL: hearth(1)
    TextBuffer page = {0};
    Status status = page_of(&page, name);
    char *path = text_format("%s/hearth%s%s.1", folder, name ? "-" : "", name ? name : "");
    if (!status) status = file_write_atomic(path, page.data, page.length);
    free(path);
    text_buffer_free(&page);
    return status;
}

static Status write_pages(const char *folder) {
    TRY(dir_make(folder));
    TRY(write_page(folder, NULL));
    for (int i = 0; i < hearth_command_count; i++)
        if (hearth_commands[i].summary) TRY(write_page(folder, hearth_commands[i].name));
    return NULL;
}

Status cmd_man(int argc, char **argv) {
    const char *folder = NULL;
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"--write", ARG_TEXT, &folder, "DIR", "write all pages there, as hearth.1, hearth-train.1, ..."}};
    const ArgCommand command = {
        "hearth man [COMMAND] | hearth man --write DIR",
        "Prints the manual page of hearth or of one of its commands, as troff: hearth man train | man -l -",
        args,
        ARG_COUNT(args),
        0,
        1};
    TRY(args_parse(&command, argc, argv, &words, &helped));
    TextBuffer page = {0};
    Status status = NULL;
    if (!helped) status = folder ? write_pages(folder) : page_of(&page, words.count ? words.items[0] : NULL);
    if (!status && page.data) fputs(page.data, stdout);
    text_buffer_free(&page);
    free(words.items);
    return status;
}
