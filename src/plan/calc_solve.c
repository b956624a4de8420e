// The registry the other way round: the one input that makes a quantity what it shall be. Nothing is known of a row but
// its function, so the input's range is walked in steps that grow with it until the result passes the wanted value, and
// halved from there.
#include "plan/calc.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Solver {
    CalcArgs args;
    int open; // the input that is looked for
    double wanted;
    bool whole;
} Solver;

// How far the quantity is from what is wanted; NAN where it has no value.
static double distance_at(Solver *solver, double x) {
    const CalcInput *input = &solver->args.quantity->inputs[solver->open];
    solver->args.given[solver->open] = x;
    solver->args.base[solver->open] = calc_base(input, x);
    double value = calc_call(&solver->args);
    return isfinite(value) ? value - solver->wanted : NAN;
}

// The point after x on the walk: every whole number at first, then a twelfth of a decade at a time.
static double next_point(const Solver *solver, double x) {
    const double ratio = 1.2115276586285884; // 10^(1/12)
    if (!solver->whole) return x > 0 ? x * ratio : 1e-18;
    return fmax(x + 1, floor(x * ratio));
}

// Halves [low, high], whose ends lie on both sides of what is wanted, to neighbours.
static void narrow(Solver *solver, double *low, double *high) {
    bool rises = distance_at(solver, *low) < 0;
    for (int i = 0; i < 2000; i++) {
        double middle = *low / 2 + *high / 2;
        if (solver->whole) middle = floor(middle);
        if (middle <= *low || middle >= *high) return;
        double distance = distance_at(solver, middle);
        if (isnan(distance)) return;
        *((distance < 0) == rises ? low : high) = middle;
    }
}

static bool is_met(const Solver *solver, double distance) {
    return fabs(distance) <= 1e-12 * fabs(solver->wanted); // some dozens of roundings
}

// The number with the fewest digits that gives what is wanted: 7e9 and not 6999999999.9999990.
static double shortest(Solver *solver, double x) {
    for (int digits = 1; digits < 17; digits++) {
        char text[40];
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
        double rounded = strtod(text, NULL);
        if (is_met(solver, distance_at(solver, rounded))) return rounded;
    }
    return x;
}

static void range_of(const CalcInput *input, double *first, double *last) {
    bool whole = input->kind == CALC_WHOLE || input->kind == CALC_COUNT;
    *first = input->kind == CALC_NUMBER || input->kind == CALC_WHOLE ? 0 : whole ? 1 : 1e-18;
    *last = input->kind == CALC_FRACTION ? 1 : whole ? 9007199254740992.0 : 1e30; // 2^53
    if (input->min > *first) *first = input->min;
    if (input->max > 0 && input->max < *last) *last = input->max;
}

static bool find(Solver *solver, double *low, double *high, bool *depends) {
    double first, last, before = NAN, at = NAN;
    range_of(&solver->args.quantity->inputs[solver->open], &first, &last);
    *depends = false;
    for (double x = first;; x = fmin(next_point(solver, x), last)) {
        double distance = distance_at(solver, x);
        if (is_met(solver, distance)) {
            *low = *high = x;
            return *depends = true;
        }
        if (!isnan(before) && !isnan(distance) && distance != before) *depends = true;
        if (!isnan(before) && !isnan(distance) && (before < 0) != (distance < 0)) {
            *low = at;
            *high = x;
            return true;
        }
        before = distance;
        at = x;
        if (x >= last) return false;
    }
}

static Status nothing_gives(const Solver *solver, bool depends) {
    const CalcQuantity *quantity = solver->args.quantity;
    const CalcInput *input = &quantity->inputs[solver->open];
    if (!depends) return status_usage("%s does not depend on %s with these inputs", quantity->name, input->name);
    double first, last;
    range_of(input, &first, &last);
    char *wanted = calc_number_text(solver->wanted), *low = calc_number_text(first), *high = calc_number_text(last);
    Status status = status_usage("no %s from %s to %s makes %s %s", input->name, low, high, quantity->name, wanted);
    free(wanted);
    free(low);
    free(high);
    return status;
}

// Of two whole numbers on both sides the nearer; what both would give is said.
static double nearer_whole(Solver *solver, double low, double high, char **note) {
    double below = distance_at(solver, low), above = distance_at(solver, high);
    if (is_met(solver, below)) return low;
    if (is_met(solver, above)) return high;
    char *texts[] = {calc_number_text(solver->wanted), calc_number_text(low), calc_number_text(high)};
    *note = text_format("no whole number gives %s exactly: %s gives %.6g and %s gives %.6g", texts[0], texts[1],
                        below + solver->wanted, texts[2], above + solver->wanted);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
    return fabs(below) <= fabs(above) ? low : high;
}

// The result with what was found, through calc_evaluate: it checks what must hold between inputs.
static Status evaluate_with(CalcSolution *solution, const Solver *solver, const char *const *words, int count) {
    const CalcQuantity *quantity = solver->args.quantity;
    const char *name = solution->input->name;
    size_t length = strlen(name);
    const char **all = xmalloc((size_t)(count + 1) * sizeof *all);
    char *number = calc_number_text(solution->found), *own = text_format("%s=%s", name, number);
    int n = 0;
    for (int i = 0; i < count; i++)
        if (strncmp(words[i], name, length) != 0 || words[i][length] != '=') all[n++] = words[i];
    all[n++] = own;
    Status status = calc_evaluate(&solution->result, quantity->name, all, n);
    free(all);
    free(own);
    free(number);
    return status;
}

static Status solve(CalcSolution *solution, const CalcQuantity *quantity, const char *value, const char *const *words,
                    int count) {
    Solver solver;
    double low, high;
    bool depends;
    if (quantity->function.arity == CALC_ARITY_TEXT)
        return status_usage("%s is a text and cannot be solved for an input", quantity->name);
    if (!text_to_count(value, &solver.wanted) || !isfinite(solver.wanted))
        return status_usage("%s takes a number, not \"%s\"", quantity->name, value);
    TRY(calc_read(&solver.args, quantity, words, count, &solver.open));
    solution->input = &quantity->inputs[solver.open];
    CalcKind kind = solution->input->kind;
    if (kind == CALC_CHOICE || kind == CALC_OVERFLOWS)
        return status_usage("%s is a choice of words and cannot be solved for", solution->input->name);
    solver.whole = kind == CALC_WHOLE || kind == CALC_COUNT;
    if (!find(&solver, &low, &high, &depends)) return nothing_gives(&solver, depends);
    narrow(&solver, &low, &high);
    solution->found =
        solver.whole ? nearer_whole(&solver, low, high, &solution->note) : shortest(&solver, low / 2 + high / 2);
    return evaluate_with(solution, &solver, words, count);
}

Status calc_solve(CalcSolution *solution, const char *name, const char *value, const char *const *words, int count) {
    const CalcQuantity *quantity;
    *solution = (CalcSolution){0};
    TRY(calc_name(&quantity, name));
    Status status = solve(solution, quantity, value, words, count);
    if (status) calc_solution_free(solution);
    return calc_with_inputs(status, quantity);
}

void calc_solution_free(CalcSolution *solution) {
    free(solution->note);
    calc_result_free(&solution->result);
    *solution = (CalcSolution){0};
}
