// Draws models, batches and meshes, trains each on its mesh and on one rank, and compares losses, norms, gradients and
// weights: mpirun -n 8 mesh_fuzz [--seconds S] [--cases N] [--seed FIRST] [--precision fp8]. One start of the ranks
// serves all cases.
//
// A line that says what failed begins with the options that repeat the case: --precision P --seed N --cases 1.
#include "mesh_train.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Sums are taken in another order, nothing else. u = 2^-24 is the rounding of one fp32 addition.
static const double LOSS_BOUND = 1e-6;     // of the first loss: 16 u over the roundings of a mean of logarithms
static const double GRADIENT_BOUND = 1e-5; // of a tensor, ||a - b|| / ||b||: 168 u, sums over thousands of terms
static const double NOISE_BOUND = 2e-7;    // and of all gradients together, for tensors whose own nearly cancel
// A weight moves by lr m / (sqrt(v) + eps), whose slope in the gradient is at most 2 lr / eps: 20 at the rates of
// mesh_train.c, in each of the steps. Losses after the first step are off by the weights' error.
static const double WEIGHT_SLOPE = 20.0 * MESH_CASE_STEPS;
static const double LATER_BOUND = 1e-5;

// In fp8 the numbers above hold for the first step of meshes whose ranks multiply what one rank does. Later a weight of
// bf16 may have fallen to its other neighbour, and its code in e4m3, 2^-4 of it, with it: of the thousands that a sum
// has. Where ranks have parts of products, or of the sum over a pipeline's layers that the balancing loss is, a result
// may differ by as much as FP8 itself is off: of gradients 0.13 sqrt(layers) of a run that rounds the blocks
// (tests/model/test_fp8.c), and both runs are off.
static const double FP8_LATER_BOUND = 1e-2;
static const double FP8_LOSS_BOUND = 1e-2;
static const double FP8_GRADIENT_BOUND = 0.13;

typedef struct Verdict {
    char text[512];
    bool failed;
} Verdict;

static void judge(Verdict *verdict, const char *what, double found, double bound) {
    if (found <= bound || verdict->failed) return; // NaN fails
    verdict->failed = true;
    snprintf(verdict->text, sizeof verdict->text, "%s differs by %.2g, and %.2g is allowed", what, found, bound);
}

static double relative(double a, double b) {
    return b != 0 ? fabs(a - b) / fabs(b) : fabs(a);
}

static double length_of(const float *a, const float *b, int64_t count) { // of a - b, or of a
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)a[i] - (b ? (double)b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

static bool in_fp8(const MeshCase *c) {
    return c->request.precision == PRECISION_FP8;
}

static bool multiplies_parts(const MeshCase *c) {
    const Mesh *mesh = &c->request.mesh;
    return mesh->tp * mesh->cp * mesh->ep * mesh->etp > 1 || (c->request.config.experts && mesh->pp > 1);
}

static Verdict compare_parts_in_fp8(const MeshCase *c, const MeshTrained *mine, const MeshTrained *one) {
    Verdict verdict = {0};
    MeshTensors tensors;
    status_free(mesh_tensors_make(&tensors, &c->request));
    int64_t count = tensors.first[tensors.count];
    for (int step = 0; step < MESH_CASE_STEPS; step++)
        judge(&verdict, "a loss", relative(mine->loss[step], one->loss[step]), FP8_LOSS_BOUND);
    judge(&verdict, "the gradient",
          length_of(mine->gradients, one->gradients, count) / length_of(one->gradients, NULL, count),
          FP8_GRADIENT_BOUND * sqrt(2.0 * c->request.config.layers));
    mesh_tensors_free(&tensors);
    return verdict;
}

static Verdict compare(const MeshCase *c, const MeshTrained *mine, const MeshTrained *one) {
    if (in_fp8(c) && multiplies_parts(c)) return compare_parts_in_fp8(c, mine, one);
    Verdict verdict = {0};
    MeshTensors tensors;
    status_free(mesh_tensors_make(&tensors, &c->request));
    char what[256];
    double later_bound = in_fp8(c) ? FP8_LATER_BOUND : LATER_BOUND;
    for (int step = 0; step < MESH_CASE_STEPS; step++) {
        double later = step ? later_bound : 0;
        snprintf(what, sizeof what, "the loss of step %d", step + 1);
        judge(&verdict, what, relative(mine->loss[step], one->loss[step]), LOSS_BOUND + later);
        snprintf(what, sizeof what, "the balancing loss of step %d", step + 1);
        judge(&verdict, what, relative(mine->loss_aux[step], one->loss_aux[step]), LOSS_BOUND + later);
        snprintf(what, sizeof what, "the gradient norm of step %d", step + 1);
        judge(&verdict, what, relative(mine->norm[step], one->norm[step]), GRADIENT_BOUND + 10 * later);
    }
    double all = length_of(one->gradients, NULL, tensors.first[tensors.count]);
    for (int i = 0; i < tensors.count; i++) {
        int64_t first = tensors.first[i], count = tensors.first[i + 1] - first;
        double gradient = length_of(one->gradients + first, NULL, count);
        double allowed = GRADIENT_BOUND * gradient + NOISE_BOUND * all;
        snprintf(what, sizeof what, "the gradient of %s", tensors.slices[i].name);
        judge(&verdict, what, length_of(mine->gradients + first, one->gradients + first, count), allowed);
        double weight = length_of(one->weights + first, NULL, count);
        snprintf(what, sizeof what, "%s at the end", tensors.slices[i].name);
        judge(&verdict, what, length_of(mine->weights + first, one->weights + first, count),
              WEIGHT_SLOPE * (allowed + (in_fp8(c) ? later_bound * gradient : 0)) + GRADIENT_BOUND * weight);
    }
    mesh_tensors_free(&tensors);
    return verdict;
}

// A token whose experts are a rounding away from others may get those on other ranks, and no bound holds then. So does
// one rank whose weights differ in their last bit.
static bool on_the_edge(const MeshCase *c, const MeshTrained *one) {
    int last_bit = in_fp8(c) && multiplies_parts(c) ? 1 << 15 : 1; // of bf16, or of a float
    for (int nudge = last_bit; nudge <= 4 * last_bit && c->request.config.experts; nudge *= 2) {
        MeshTrained nudged;
        status_free(mesh_train(c, NULL, nudge, &nudged));
        Verdict verdict = compare(c, &nudged, one);
        mesh_trained_free(&nudged);
        if (verdict.failed) return true;
    }
    return false;
}

static bool same_bits(const MeshCase *c, const MeshTrained *a, const MeshTrained *b) {
    MeshTensors tensors;
    status_free(mesh_tensors_make(&tensors, &c->request));
    size_t bytes = (size_t)tensors.first[tensors.count] * sizeof(float);
    mesh_tensors_free(&tensors);
    return memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(a->gradients, b->gradients, bytes) == 0 && memcmp(a->weights, b->weights, bytes) == 0;
}

// ZeRO 3 rounds weights of FP8 where they are gathered, ZeRO 2 where they are kept: they are the same numbers.
static Status train_on_zero_2(const MeshCase *c, World *world, MeshTrained *trained) {
    MeshCase other = *c;
    other.request.mesh.zero = 2;
    return mesh_train(&other, world, 0, trained);
}

static bool verbose;

typedef enum Outcome { CASE_EQUAL, CASE_ON_THE_EDGE, CASE_FAILED } Outcome;

static Outcome run_case(const MeshCase *c, World *world) {
    MeshTrained mine = {0}, again = {0}, one = {0};
    bool member = world->rank < mesh_ranks(&c->request.mesh), twice = c->seed % 4 == 0;
    char line[512];
    mesh_case_print(c, line, sizeof line);
    if (verbose && world->rank == 0) printf("%s\n", line), fflush(stdout); // before it ends the job, if it does
    Status status = member ? mesh_train(c, world, 0, &mine) : NULL;
    bool zero_3 = in_fp8(c) && c->request.mesh.zero == 3;
    if (!status && member && zero_3) status = train_on_zero_2(c, world, &again);
    if (!status && member && twice && !zero_3) status = mesh_train(c, world, 0, &again);
    status = world_share(world, status);
    Outcome outcome = CASE_EQUAL;
    if (status) {
        outcome = CASE_FAILED;
        if (world->rank == 0) printf("FAILED %s\n       %s\n", line, status_message(status));
    } else if (world->rank == 0) {
        status = mesh_train(c, NULL, 0, &one);
        Verdict verdict = {.failed = status != NULL};
        if (status) snprintf(verdict.text, sizeof verdict.text, "on one rank: %s", status_message(status));
        if (!status) verdict = compare(c, &mine, &one);
        if (verdict.failed) outcome = !status && on_the_edge(c, &one) ? CASE_ON_THE_EDGE : CASE_FAILED;
        if (!status && (twice || zero_3) && !same_bits(c, &mine, &again)) {
            outcome = CASE_FAILED;
            snprintf(verdict.text, sizeof verdict.text, "%s has other bits", zero_3 ? "ZeRO 2" : "a second run");
        }
        if (outcome == CASE_FAILED) printf("FAILED %s\n       %s\n", line, verdict.text);
    }
    fflush(stdout);
    status_free(status);
    mesh_trained_free(&mine);
    mesh_trained_free(&again);
    mesh_trained_free(&one);
    world_broadcast(world, &outcome, sizeof outcome, 0);
    return outcome;
}

int main(int argc, char **argv) {
    double seconds = 1e9;
    int64_t cases = 100, failures_wanted = 1;
    uint64_t seed = 1;
    Precision precision = PRECISION_FP32;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) seconds = atof(argv[i + 1]), cases = INT64_MAX;
        if (strcmp(argv[i], "--cases") == 0) cases = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--precision") == 0) status_free(precision_parse(&precision, argv[i + 1]));
        if (strcmp(argv[i], "--verbose") == 0) verbose = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--failures") == 0) failures_wanted = atoll(argv[i + 1]); // stop after so many
    }
    threads_set(1);
    World *world;
    Status status = world_open(&world, NULL);
    if (status) {
        fprintf(stderr, "mesh_fuzz: %s\n", status_message(status));
        return 1;
    }
    int64_t count[3] = {0}, run = 0;
    double begin = clock_seconds();
    bool go = true;
    for (; go && run < cases; run++) {
        MeshCase c = mesh_case_draw(seed + (uint64_t)run, world->size, precision);
        count[run_case(&c, world)]++;
        go = clock_seconds() - begin < seconds && count[CASE_FAILED] < failures_wanted;
        world_broadcast(world, &go, sizeof go, 0);
    }
    if (world->rank == 0)
        printf("mesh-fuzz: %lld cases in %s of up to %d ranks in %.0f s from seed %llu: %lld equal one rank, %lld on "
               "the edge "
               "between experts, %lld failed\n",
               (long long)run, precision_name(precision), world->size, clock_seconds() - begin,
               (unsigned long long)seed, (long long)count[CASE_EQUAL], (long long)count[CASE_ON_THE_EDGE],
               (long long)count[CASE_FAILED]);
    world_close(world);
    return count[CASE_FAILED] ? 1 : 0;
}
