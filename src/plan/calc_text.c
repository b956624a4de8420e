// How quantities and results read: aligned text for people, JSON for programs.
#include "plan/calc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double WHOLE_MAX = 9007199254740992.0; // 2^53: every whole number up to here is a double

char *calc_number_text(double value) {
    char number[32];
    return text_copy(text_number(number, value));
}

static const char *limit_text(const CalcInput *input) {
    switch (input->kind) {
    case CALC_NUMBER: return ">= 0";
    case CALC_POSITIVE: return "> 0";
    case CALC_WHOLE: return "whole, >= 0";
    case CALC_COUNT: return "whole, >= 1";
    case CALC_FRACTION: return "over 0, at most 1";
    case CALC_CHOICE: return "";
    case CALC_OVERFLOWS: return "T = overflow, F = none, e.g. FFTF";
    }
    return "";
}

// "GB, > 0, default 1" without the name; choices read "full|causal|none".
static void input_limits(TextBuffer *out, const CalcInput *input) {
    size_t start = out->length;
    if (*input->unit) text_buffer_format(out, "%s", input->unit);
    for (const CalcChoice *choice = input->choices; choice && choice->name; choice++)
        text_buffer_format(out, "%s%s", choice == input->choices ? "" : "|", choice->name);
    const char *limit = limit_text(input);
    if (*limit) text_buffer_format(out, "%s%s", out->length > start ? ", " : "", limit);
    if (input->max > 0 || input->min > 0) {
        char *bound = calc_number_text(input->max > 0 ? input->max : input->min);
        text_buffer_format(out, ", %s %s", input->max > 0 ? "<=" : ">=", bound);
        free(bound);
    }
    if (input->fallback) text_buffer_format(out, ", default %s", input->fallback);
}

char *calc_inputs_text(const CalcQuantity *quantity) {
    TextBuffer out = {0};
    int count = calc_input_count(quantity);
    for (int i = 0; i < count; i++) {
        text_buffer_format(&out, "%s%s (", i ? ", " : "", quantity->inputs[i].name);
        input_limits(&out, &quantity->inputs[i]);
        text_buffer_format(&out, ")");
    }
    return out.data;
}

// --- one result -----------------------------------------------------------------------------------------------------

static char *value_text(const CalcResult *result) {
    if (result->text) return text_copy(result->text);
    double value = result->value;
    char grouped[32];
    if (value == floor(value) && fabs(value) < 1e15) return text_copy(text_grouped(grouped, (int64_t)value));
    return text_format("%.10g", value);
}

void calc_result_text(TextBuffer *out, const CalcResult *result) {
    char *value = value_text(result);
    const CalcQuantity *quantity = result->quantity;
    text_buffer_format(out, "%s = %s%s%s\n", quantity->name, value, *quantity->unit ? " " : "", quantity->unit);
    text_buffer_format(out, "  formula     %s\n", result->expression);
    if (strcmp(result->expression, result->numbers) != 0)
        text_buffer_format(out, "            = %s\n", result->numbers);
    text_buffer_format(out, "  convention  %s\n", quantity->convention);
    if (result->note) text_buffer_format(out, "  note        %s\n", result->note);
    free(value);
}

static json_t *number_json(double value) {
    return value == floor(value) && fabs(value) <= WHOLE_MAX ? json_integer((json_int_t)value) : json_real(value);
}

json_t *calc_result_json(const CalcResult *result) {
    json_t *value = result->text ? json_string(result->text) : number_json(result->value);
    char *formula = text_format("%s = %s", result->expression, result->numbers);
    json_t *root = json_pack("{s:s, s:o, s:s, s:s, s:s}", "quantity", result->quantity->name, "value", value, "unit",
                             result->quantity->unit, "formula", formula, "convention", result->quantity->convention);
    free(formula);
    if (result->note) json_object_set_new(root, "note", json_string(result->note));
    return root;
}

void calc_solution_text(TextBuffer *out, const CalcSolution *solution) {
    char *found = calc_number_text(solution->found);
    const char *unit = solution->input->unit;
    text_buffer_format(out, "%s = %s%s%s\n", solution->input->name, found, *unit ? " " : "", unit);
    if (solution->note) text_buffer_format(out, "  note        %s\n", solution->note);
    calc_result_text(out, &solution->result);
    free(found);
}

json_t *calc_solution_json(const CalcSolution *solution) {
    json_t *root = calc_result_json(&solution->result);
    json_object_set_new(root, "solved", json_string(solution->input->name));
    json_object_set_new(root, "found", number_json(solution->found));
    json_object_set_new(root, "found_unit", json_string(solution->input->unit));
    if (solution->note) json_object_set_new(root, "found_note", json_string(solution->note));
    return root;
}

char *calc_json_text(const json_t *root) {
    const json_t *value = json_object_get(root, "value");
    int digits = json_is_real(value) ? text_digits(json_real_value(value)) : 17;
    return json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits));
}

// --- lists ----------------------------------------------------------------------------------------------------------

static bool quantity_matches(const CalcSubject *subject, const CalcQuantity *quantity, const char *word) {
    return !word || strcasestr(quantity->name, word) || strcasestr(subject->name, word) ||
           strcasestr(quantity->summary, word);
}

static Status nothing_matches(const char *word) {
    return status_hint(status_usage("no quantity matches \"%s\"", word), "hearth calc --list names all of them");
}

static void describe_quantity(TextBuffer *out, const CalcQuantity *quantity) {
    text_buffer_format(out, "%s: %s%s%s%s\n", quantity->name, quantity->summary, *quantity->unit ? " (" : "",
                       quantity->unit, *quantity->unit ? ")" : "");
    int count = calc_input_count(quantity);
    for (int i = 0; i < count; i++) {
        TextBuffer limits = {0};
        input_limits(&limits, &quantity->inputs[i]);
        text_buffer_format(out, "  %-22s %s (%s)\n", quantity->inputs[i].name, quantity->inputs[i].meaning,
                           limits.data);
        text_buffer_free(&limits);
    }
    text_buffer_format(out, "  convention: %s\n", quantity->convention);
    if (quantity->note && *quantity->note) text_buffer_format(out, "  note: %s\n", quantity->note);
}

Status calc_list_text(TextBuffer *out, const char *word) {
    const CalcQuantity *one = word ? calc_find(word) : NULL;
    if (one) {
        describe_quantity(out, one);
        return NULL;
    }
    bool any = false;
    for (int s = 0; s < calc_subject_count; s++) {
        const CalcSubject *subject = calc_subjects[s];
        bool headed = false;
        for (int i = 0; i < subject->count; i++) {
            const CalcQuantity *quantity = &subject->quantities[i];
            if (!quantity_matches(subject, quantity, word)) continue;
            if (!headed) text_buffer_format(out, "%s%s\n", any ? "\n" : "", subject->name);
            headed = any = true;
            text_buffer_format(out, "  %-34s %s%s%s%s\n", quantity->name, quantity->summary,
                               *quantity->unit ? " [" : "", quantity->unit, *quantity->unit ? "]" : "");
        }
    }
    return any ? NULL : nothing_matches(word);
}

static json_t *choices_json(const CalcChoice *choices) {
    json_t *list = json_array();
    for (; choices->name; choices++)
        json_array_append_new(list, json_string(choices->name));
    return list;
}

static json_t *quantity_json(const CalcSubject *subject, const CalcQuantity *quantity) {
    json_t *inputs = json_array();
    int count = calc_input_count(quantity);
    for (int i = 0; i < count; i++) {
        const CalcInput *input = &quantity->inputs[i];
        TextBuffer limits = {0};
        input_limits(&limits, input);
        json_t *row = json_pack("{s:s, s:s, s:s, s:s?, s:s}", "name", input->name, "unit", input->unit, "meaning",
                                input->meaning, "default", input->fallback, "limits", limits.data ? limits.data : "");
        text_buffer_free(&limits);
        if (input->choices) json_object_set_new(row, "choices", choices_json(input->choices));
        json_array_append_new(inputs, row);
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:o, s:s, s:s, s:s}", "quantity", quantity->name, "subject",
                     subject->name, "summary", quantity->summary, "unit", quantity->unit, "text",
                     quantity->function.arity == CALC_ARITY_TEXT, "inputs", inputs, "formula", quantity->formula,
                     "convention", quantity->convention, "note", quantity->note);
}

Status calc_list_json(json_t **root, const char *word) {
    json_t *list = json_array();
    const CalcQuantity *one = word ? calc_find(word) : NULL;
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++) {
            const CalcQuantity *quantity = &calc_subjects[s]->quantities[i];
            if (one ? quantity == one : quantity_matches(calc_subjects[s], quantity, word))
                json_array_append_new(list, quantity_json(calc_subjects[s], quantity));
        }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return nothing_matches(word);
    }
    *root = list;
    return NULL;
}
