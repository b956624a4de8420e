// The formula that hearth calc shows is the formula that it computes: the text with the numbers put in is evaluated as
// arithmetic and compared with the value, for the vectors and for random inputs of every quantity.
#include "plan/calc_vectors.h"

#include "base/rng.h"
#include "plan/rounding.h"

#include <ctype.h>

// --- a small evaluator: + - * / ^, parentheses, functions, pi -------------------------------------------------------

typedef struct Parser {
    const char *at;
    bool failed;
} Parser;

static double parse_sum(Parser *parser);

static void skip_spaces(Parser *parser) {
    while (*parser->at == ' ')
        parser->at++;
}

static bool accept(Parser *parser, char symbol) {
    skip_spaces(parser);
    if (*parser->at != symbol) return false;
    parser->at++;
    return true;
}

static double apply(const char *name, const double *x, int count, bool *known) {
    *known = true;
    if (count == 1 && strcmp(name, "sqrt") == 0) return sqrt(x[0]);
    if (count == 1 && strcmp(name, "floor") == 0) return plan_floor(x[0]);
    if (count == 1 && strcmp(name, "ceil") == 0) return plan_ceil(x[0]);
    if (count == 1 && strcmp(name, "round") == 0) return rint(x[0]);
    if (count == 1 && strcmp(name, "log2") == 0) return log2(x[0]);
    if (count == 1 && strcmp(name, "ln") == 0) return log(x[0]);
    if (count == 1 && strcmp(name, "exp") == 0) return exp(x[0]);
    if (count == 1 && strcmp(name, "cos") == 0) return cos(x[0]);
    if (count == 2 && strcmp(name, "max") == 0) return fmax(x[0], x[1]);
    if (count == 2 && strcmp(name, "min") == 0) return fmin(x[0], x[1]);
    if (count == 1 && strcmp(name, "harmonic") == 0) {
        double sum = 0;
        for (double i = 1; i <= x[0]; i++)
            sum += 1 / i;
        return sum;
    }
    *known = false;
    return NAN;
}

static double parse_word(Parser *parser) {
    char name[16];
    size_t length = 0;
    while (isalnum((unsigned char)*parser->at) && length + 1 < sizeof name)
        name[length++] = *parser->at++;
    name[length] = 0;
    if (strcmp(name, "pi") == 0) return M_PI;
    double arguments[2] = {0};
    int count = 0;
    bool known = false;
    if (accept(parser, '(')) {
        do
            arguments[count++] = parse_sum(parser);
        while (count < 2 && accept(parser, ','));
        if (!accept(parser, ')')) parser->failed = true;
    }
    double value = apply(name, arguments, count, &known);
    if (!known) parser->failed = true;
    return value;
}

static double parse_atom(Parser *parser) {
    skip_spaces(parser);
    if (accept(parser, '(')) {
        double value = parse_sum(parser);
        if (!accept(parser, ')')) parser->failed = true;
        return value;
    }
    if (isalpha((unsigned char)*parser->at)) return parse_word(parser);
    char *end;
    double value = strtod(parser->at, &end);
    if (end == parser->at) parser->failed = true;
    parser->at = end;
    return value;
}

static double parse_power(Parser *parser) {
    double value = parse_atom(parser);
    return accept(parser, '^') ? pow(value, parse_power(parser)) : value;
}

static double parse_product(Parser *parser) {
    double value = parse_power(parser);
    while (!parser->failed) {
        if (accept(parser, '*'))
            value *= parse_power(parser);
        else if (accept(parser, '/'))
            value /= parse_power(parser);
        else
            break;
    }
    return value;
}

static double parse_sum(Parser *parser) {
    double value = parse_product(parser);
    while (!parser->failed) {
        if (accept(parser, '+'))
            value += parse_product(parser);
        else if (accept(parser, '-'))
            value -= parse_product(parser);
        else
            break;
    }
    return value;
}

static bool evaluate_text(const char *text, double *value) {
    Parser parser = {text, false};
    *value = parse_sum(&parser);
    skip_spaces(&parser);
    return !parser.failed && *parser.at == 0;
}

// -------------------------------------------------------------------------------------------------------------------

// Differences of near numbers lose digits on both sides, hence more than the rounding of a product.
static const double TOLERANCE = 1e-9;

static bool agrees(const CalcResult *result, double shown) {
    return fabs(shown - result->value) <= TOLERANCE * fmax(fabs(result->value), 1e-300);
}

static bool is_arithmetic(const CalcQuantity *quantity) {
    static const char *const prose[] = {"loss_scale", "pp_layer_split", "tp_col_shape"};
    for (size_t i = 0; i < sizeof prose / sizeof prose[0]; i++)
        if (strcmp(quantity->name, prose[i]) == 0) return false;
    return true;
}

static void formulas_of_the_vectors_give_their_values(void **state) {
    (void)state;
    VectorTable table = vector_table_read();
    int checked = 0;
    for (int row = 0; row < table.rows; row++) {
        char *words[VECTOR_WORDS_MAX];
        int count = vector_words(vector_get(&table, row, VECTOR_INPUTS), words);
        CalcResult result;
        double shown;
        assert_ok(calc_evaluate(&result, vector_get(&table, row, VECTOR_QUANTITY), (const char *const *)words, count));
        if (is_arithmetic(result.quantity)) {
            if (!evaluate_text(result.numbers, &shown))
                fail_msg("%s: cannot read %s", result.quantity->name, result.numbers);
            if (!agrees(&result, shown))
                fail_msg("%s: %s = %.17g, value %.17g", result.quantity->name, result.numbers, shown, result.value);
            checked++;
        }
        calc_result_free(&result);
        vector_words_free(words, count);
    }
    printf("formulas: %d of %d vectors are arithmetic and agree\n", checked, table.rows);
    vector_table_free(&table);
}

static uint64_t draws;

static double draw(double low, double high) {
    return low + (high - low) * rng_uniform(7, RNG_STREAM_TEST, draws++);
}

static char *random_word(const CalcInput *input) {
    static const double counts[] = {1, 2, 3, 4, 6, 8, 12, 16, 64, 128, 1000};
    switch (input->kind) {
    case CALC_COUNT: return text_format("%s=%.0f", input->name, counts[(int)draw(0, 11)]);
    case CALC_WHOLE: return text_format("%s=%.0f", input->name, floor(draw(0, 30)));
    case CALC_FRACTION: return text_format("%s=%.6g", input->name, draw(0.01, 1));
    case CALC_NUMBER:
    case CALC_POSITIVE: return text_format("%s=%.6g", input->name, pow(10, draw(-1, 3)));
    case CALC_CHOICE: {
        int count = 0;
        while (input->choices[count].name)
            count++;
        return text_format("%s=%s", input->name, input->choices[(int)draw(0, count)].name);
    }
    case CALC_OVERFLOWS: return text_format("%s=%s", input->name, "FFTF");
    }
    return NULL;
}

static void formulas_of_random_inputs_give_the_values(void **state) {
    (void)state;
    enum { WANTED = 40, TRIES = 4000 };
    int quantities = 0, evaluations = 0;
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++) {
            const CalcQuantity *quantity = &calc_subjects[s]->quantities[i];
            if (!is_arithmetic(quantity)) continue;
            int done = 0;
            for (int attempt = 0; attempt < TRIES && done < WANTED; attempt++) {
                char *words[CALC_INPUTS_MAX];
                int count = calc_input_count(quantity);
                for (int k = 0; k < count; k++)
                    words[k] = random_word(&quantity->inputs[k]);
                CalcResult result;
                Status status = calc_evaluate(&result, quantity->name, (const char *const *)words, count);
                if (!status) { // else the draw broke a rule between inputs
                    double shown;
                    assert_true(evaluate_text(result.numbers, &shown));
                    if (!agrees(&result, shown))
                        fail_msg("%s: %s = %.17g, value %.17g", quantity->name, result.numbers, shown, result.value);
                    done++;
                }
                status_free(status);
                calc_result_free(&result);
                vector_words_free(words, count);
            }
            if (done < WANTED) fail_msg("%s: only %d of the random inputs were accepted", quantity->name, done);
            quantities++;
            evaluations += done;
        }
    printf("formulas: %d random evaluations of %d quantities agree\n", evaluations, quantities);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas_of_the_vectors_give_their_values),
        cmocka_unit_test(formulas_of_random_inputs_give_the_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
