// Any words as inputs of a quantity of the calculator: two bytes choose the quantity, the rest are its values, one a
// line; a line with a '=' names its own input.
#include "fuzz_files.h"

#include "base/text.h"
#include "plan/calc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    const CalcSubject *subject = calc_subjects[data[0] % calc_subject_count];
    const CalcQuantity *quantity = &subject->quantities[data[1] % subject->count];
    int inputs = calc_input_count(quantity), count = 0;
    char *words[CALC_INPUTS_MAX] = {NULL}, *text = malloc(size - 1), *rest = NULL;
    memcpy(text, data + 2, size - 2);
    text[size - 2] = 0;
    for (char *line = strtok_r(text, "\n", &rest); line && count < CALC_INPUTS_MAX;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *name = count < inputs ? quantity->inputs[count].name : "more";
        words[count++] = strchr(line, '=') ? text_copy(line) : text_format("%s=%s", name, line);
    }
    CalcResult result;
    Status status = calc_evaluate(&result, quantity->name, (const char *const *)words, count);
    if (!status) {
        TextBuffer out = {0};
        calc_result_text(&out, &result);
        text_buffer_free(&out);
        json_t *json = calc_result_json(&result);
        free(calc_json_text(json));
        json_decref(json);
        calc_result_free(&result);
    }
    status_free(status);
    for (int i = 0; i < count; i++)
        free(words[i]);
    free(text);
    return 0;
}
