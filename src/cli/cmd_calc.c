// hearth calc: any number a training engineer derives by hand, with its formula. Everything it knows is in plan/calc.h.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "plan/calc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_json(json_t *root) {
    char *text = calc_json_text(root);
    puts(text);
    free(text);
    json_decref(root);
}

static Status list_quantities(const char *word, bool as_json) {
    if (as_json) {
        json_t *root;
        TRY(calc_list_json(&root, word));
        print_json(root);
        return NULL;
    }
    TextBuffer out = {0};
    Status status = calc_list_text(&out, word);
    if (!status) fputs(out.data, stdout);
    text_buffer_free(&out);
    return status;
}

// "train_hours=24": the input that is left out is looked for.
static Status solve_quantity(const char *name, const char *value, const ArgList *words, bool as_json) {
    CalcSolution solution;
    TRY(calc_solve(&solution, name, value, words->items + 1, words->count - 1));
    if (as_json) {
        print_json(calc_solution_json(&solution));
    } else {
        TextBuffer out = {0};
        calc_solution_text(&out, &solution);
        fputs(out.data, stdout);
        text_buffer_free(&out);
    }
    calc_solution_free(&solution);
    return NULL;
}

static Status calculate_quantity(const ArgList *words, bool as_json) {
    const char *equals = strchr(words->items[0], '=');
    if (equals) {
        char *name = text_copy_n(words->items[0], (size_t)(equals - words->items[0]));
        Status status = solve_quantity(name, equals + 1, words, as_json);
        free(name);
        return status;
    }
    CalcResult result;
    TRY(calc_evaluate(&result, words->items[0], words->items + 1, words->count - 1));
    if (as_json) {
        print_json(calc_result_json(&result));
    } else {
        TextBuffer out = {0};
        calc_result_text(&out, &result);
        fputs(out.data, stdout);
        text_buffer_free(&out);
    }
    calc_result_free(&result);
    return NULL;
}

Status cmd_calc(int argc, char **argv) {
    bool as_json = false, as_list = false;
    const Arg args[] = {
        {"--list", ARG_FLAG, &as_list, NULL,
         "quantities by subject; with a word those that match, with a name its inputs"},
        {"--json", ARG_FLAG, &as_json, NULL, "one JSON object: quantity, value, unit, formula, convention"},
    };
    const ArgCommand command = {
        .usage = "hearth calc QUANTITY[=value] name=value ... [--json] | hearth calc --list [WORD] [--json]",
        .summary = "Computes one quantity and shows the formula with the numbers and the convention behind it.\n"
                   "Values may be written 1e9, 1_000_000, or with K, M, B, T where something is counted (params=7B).\n"
                   "Example: hearth calc ring_allreduce_ms M_GB=2 N=8 bw_GBps=50\n"
                   "With a value of its own it is solved for the input that is left out, or written name=?:\n"
                   "hearth calc ring_allreduce_ms=70 M_GB=2 N=8",
        .args = args,
        .arg_count = ARG_COUNT(args),
        .words_max = -1,
    };
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        if (as_list && words.count > 1)
            status = status_usage("--list takes one word");
        else if (as_list)
            status = list_quantities(words.count ? words.items[0] : NULL, as_json);
        else if (words.count == 0)
            status = status_hint(status_usage("hearth calc needs a quantity"), "hearth calc --list names all of them");
        else
            status = calculate_quantity(&words, as_json);
    }
    free(words.items);
    return status;
}
