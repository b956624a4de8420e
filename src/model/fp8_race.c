// Which products run in FP8: those for which a layer, or the LM head, gets faster, by time under load on this device. A
// model of one layer with the run's sizes trains on random tokens, with few words for the layer's products and with all
// of them for the head's; the answers are kept with the device's other choices.
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "model/fp8.h"

#include <stdlib.h>
#include <string.h>

// A difference that repeats: less, and the choice stays.
static const double RACE_MARGIN = 0.997;

static const unsigned attention_uses[] = {FP8_QKV_FORWARD, FP8_QKV_INPUT, FP8_QKV_WEIGHT,
                                          FP8_O_FORWARD,   FP8_O_INPUT,   FP8_O_WEIGHT};

enum { FEW_WORDS = 512 }; // where the head is not raced

static bool all_sparse(const LayoutRequest *request) {
    return model_sparse_layers(&request->config) == request->config.layers;
}

// What attention's backward pass is lent in the run. A layer alone leaves little, in bf16 less than in FP8, and then
// the race would be between kernels of attention.
static int64_t scratch_of(const LayoutRequest *request) {
    Layout layout;
    Status status = layout_build(&layout, request);
    const LayoutActivation *act = status ? NULL : layout_activation(&layout, ACT_SCRATCH, -1, STEP_BACKWARD);
    int64_t bytes = act ? act->bytes : 0;
    if (!status) layout_free(&layout);
    status_free(status); // whoever builds the model says what is wrong
    return bytes;
}

// One layer of the model as this rank has it, with experts or without, and so many words at most. Of experts those that
// are here, or as many as a token visits: then there are as many rows as here.
static LayoutRequest one_layer(const LayoutRequest *request, int words, unsigned off, bool sparse) {
    LayoutRequest one = *request;
    ModelConfig *c = &one.config;
    int tp = request->mesh.tp, held = c->experts / request->mesh.ep;
    c->heads /= tp;
    c->kv_heads = mesh_kv_heads(&request->mesh, c->kv_heads);
    c->ffn /= tp;
    c->experts = held > c->top_k ? held : c->top_k;
    c->moe_ffn /= request->mesh.etp;
    c->sparse[0] = sparse;
    c->layers = 1;
    c->vocab = c->vocab < words ? c->vocab : words;
    one.seq /= request->mesh.cp;
    one.mesh = MESH_SINGLE;
    one.rank = one.virtual_stages = one.micro_batches = one.islands = one.island = 0;
    one.documents = false;
    one.fp8_off = off;
    one.scratch = scratch_of(request);
    return one;
}

typedef struct Racer {
    Ops *ops;
    Model *model;
    int32_t *ids;
} Racer;

// False: there is no room for it. A layer with all of its optimizer's state may need more than a rank's share of a
// model.
static bool racer_open(Racer *racer, Ops *ops, const LayoutRequest *request) {
    *racer = (Racer){.ops = ops};
    Status status = model_create(&racer->model, ops, request);
    if (status) {
        log_warn("products in FP8 are not raced against bf16: %s", status_message(status));
        status_free(status);
        return false;
    }
    Model *model = racer->model;
    model->direct = true; // choices change between runs, which a graph would not see
    model_init_weights(model, 1, false);
    racer->ids = xmalloc((size_t)model->layout.tokens * sizeof *racer->ids);
    for (int64_t i = 0; i < model->layout.tokens; i++)
        racer->ids[i] = (int32_t)rng_below(1, RNG_STREAM_BENCH, (uint64_t)i, (uint64_t)request->config.vocab);
    return true;
}

static void racer_close(Racer *racer) {
    model_destroy(racer->model);
    free(racer->ids);
    *racer = (Racer){0};
}

static void racer_run(Racer *racer, int times) {
    for (int i = 0; i < times; i++) {
        model_step_begin(racer->model, racer->model->layout.tokens, 1);
        model_micro_step(racer->model, racer->ids, racer->ids, NULL);
    }
}

// Milliseconds of a micro-step with these products in FP8, after the clock has settled.
static double racer_time(Racer *racer, unsigned on) {
    enum { HEAT_MS = 60, RACE_MS = 80 };
    Ops *ops = racer->ops;
    double milliseconds = 0;
    racer->model->fp8_masked = ~on;
    racer_run(racer, 2); // kernels are chosen, scales set
    for (int round = 0, times = 1; round < 3; round++) {
        ops->mark(ops, 0);
        racer_run(racer, times);
        ops->mark(ops, 1);
        milliseconds = ops->mark_elapsed(ops, 0, 1) / times;
        times = 1 + (int)((round ? RACE_MS : HEAT_MS) / (milliseconds > 0.01 ? milliseconds : 0.01));
    }
    return milliseconds;
}

// Whether a layer is faster with this product in bf16, in every one of some turns; *best: its time. Looks differ by
// half a per cent, six products are looked at, and at the power limit one that leaves FP8 for nothing costs a run more
// than the layer alone shows.
static bool faster_without(Racer *racer, unsigned on, unsigned use, double *best) {
    enum { TURNS = 3 };
    double with = *best, without = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn) with = racer_time(racer, on);
        without = racer_time(racer, on & ~use);
        if (without >= RACE_MARGIN * with) return false;
    }
    *best = without;
    return true;
}

// The products on which time is won, with MLP or experts as the racer's layout has them; *best: the time.
static unsigned race_attention(Racer *racer, double *best) {
    unsigned on = racer->model->layout.fp8;
    *best = racer_time(racer, on);
    for (size_t i = 0; i < sizeof attention_uses / sizeof *attention_uses; i++)
        if (on & attention_uses[i] && faster_without(racer, on, attention_uses[i], best)) on &= ~attention_uses[i];
    return on;
}

// Of a model with dense layers too, where race_layer has had a dense one: experts alone, in a layer that has them.
static bool race_experts(Ops *ops, const LayoutRequest *request, unsigned *on) {
    double times[2];
    for (int i = 0; i < 2; i++) {
        LayoutRequest one = one_layer(request, FEW_WORDS, (FP8_ALL & ~*on) | FP8_EXPERTS, true);
        if (i) one.fp8_off = request->fp8_off | (one.fp8_off & ~(unsigned)FP8_EXPERTS);
        if (i && !(layout_fp8(&one) & FP8_EXPERTS)) return true;
        Racer racer = {0};
        if (!racer_open(&racer, ops, &one)) return false;
        times[i] = racer_time(&racer, racer.model->layout.fp8);
        racer_close(&racer);
    }
    if (times[1] < RACE_MARGIN * times[0]) *on |= FP8_EXPERTS;
    return true;
}

static bool race_layer(Ops *ops, const LayoutRequest *request, unsigned *on, double times[2]) {
    Racer racer = {0};
    unsigned off = request->fp8_off | FP8_HEAD;
    bool sparse = all_sparse(request);
    LayoutRequest all = one_layer(request, FEW_WORDS, off, sparse);
    LayoutRequest plain = one_layer(request, FEW_WORDS, off | FP8_MLP | FP8_EXPERTS, sparse);
    if (!racer_open(&racer, ops, &plain)) return false;
    double best = times[1] = racer_time(&racer, 0), time;
    unsigned chosen = race_attention(&racer, &time);
    *on = 0;
    if (time < RACE_MARGIN * best) best = time, *on = chosen;
    racer_close(&racer);
    if (layout_fp8(&all) & (FP8_MLP | FP8_EXPERTS)) {
        if (!racer_open(&racer, ops, &all)) return false;
        chosen = race_attention(&racer, &time);
        if (time < RACE_MARGIN * best) best = time, *on = chosen;
        racer_close(&racer);
    }
    times[0] = best;
    return sparse || !(layout_fp8(request) & FP8_EXPERTS) || race_experts(ops, request, on);
}

// The head alone in FP8, on a layer in bf16.
static bool race_head(Ops *ops, const LayoutRequest *request, unsigned *on, double times[2]) {
    static const unsigned choices[] = {FP8_HEAD, FP8_HEAD_FORWARD, FP8_HEAD_GRADIENTS};
    LayoutRequest one = one_layer(request, (int)layout_vocab_rows(request), request->fp8_off | (FP8_ALL & ~FP8_HEAD),
                                  all_sparse(request));
    Racer racer = {0};
    one.config.tied = true; // one matrix of the two that there may be
    if (!racer_open(&racer, ops, &one)) return false;
    times[0] = times[1] = racer_time(&racer, 0);
    *on = 0;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if ((choices[i] & racer.model->layout.fp8) != choices[i]) continue;
        double time = racer_time(&racer, choices[i]);
        if (time < RACE_MARGIN * times[0]) times[0] = time, *on = choices[i];
    }
    racer_close(&racer);
    return true;
}

static char *layer_key(const LayoutRequest *request) {
    int sparse = model_sparse_layers(&request->config), kinds = sparse ? 1 + all_sparse(request) : 0;
    LayoutRequest one = one_layer(request, FEW_WORDS, request->fp8_off & ~(unsigned)FP8_HEAD, sparse > 0);
    const ModelConfig *c = &one.config;
    return text_format("fp8 6 %d %d %d %d %d experts %d: %d of %d %d tokens %d x %d recompute %d off %u", c->hidden,
                       c->heads, c->kv_heads, c->head_dim, c->ffn, kinds, c->top_k, c->experts, c->moe_ffn,
                       one.micro_batch, one.seq, (int)one.recompute, one.fp8_off);
}

static char *head_key(const LayoutRequest *request) {
    return text_format("fp8 head 1 %d %lld rows %lld off %u", request->config.hidden,
                       (long long)layout_vocab_rows(request), (long long)layout_logits_rows(request),
                       request->fp8_off & FP8_HEAD);
}

// One of the two races: what is asked of, where its answer is kept, and what it measures.
typedef struct Race {
    unsigned uses;
    bool (*run)(Ops *ops, const LayoutRequest *request, unsigned *on, double times[2]); // false: not to the end
    char *(*key)(const LayoutRequest *request);
    const char *what;
} Race;

// Of the products in *on, those of the race that are not faster in FP8 leave it; without a race all stay.
static Status choose(Ops *ops, const LayoutRequest *request, const Race *race, unsigned *on) {
    if (!(*on & race->uses)) return NULL;
    unsigned faster = race->uses;
    int known;
    double times[2];
    Status status = NULL;
    char *key = race->key(request);
    if (ops->choice_recall(ops, key, &known)) {
        faster = (unsigned)known;
    } else if (!race->run(ops, request, &faster, times)) {
        faster = race->uses;
        status = ops->sync(ops);
    } else if (!(status = ops->sync(ops))) {
        ops->choice_keep(ops, key, (int)faster);
        log_info("%s takes %.2f ms with the fastest choice of FP8 products, %.2f ms in bf16", race->what, times[0],
                 times[1]);
    }
    *on &= faster | ~race->uses;
    free(key);
    return status;
}

// The choice of the first rank is that of all.
static Status share_choice(Ops *ops, Comm *all, unsigned *on) {
    void *memory;
    int32_t value = (int32_t)*on;
    if (!all) return NULL;
    TRY(ops->alloc(ops, &memory, sizeof value, "the choice of FP8 products"));
    ops->upload(ops, memory, &value, sizeof value);
    comm_wait(all, comm_broadcast(all, tensor_make(memory, DTYPE_I32, 1, 1, "choice"), 0));
    ops->download(ops, &value, memory, sizeof value);
    ops->free(ops, memory, sizeof value);
    *on = (unsigned)value;
    return NULL;
}

void fp8_describe(unsigned fp8, char text[FP8_TEXT]) {
    static const char *const names[] = {"qkv",
                                        "qkv input gradient",
                                        "qkv weight gradient",
                                        "o",
                                        "o input gradient",
                                        "o weight gradient",
                                        "MLP with its gradients",
                                        "experts with their gradients",
                                        "head",
                                        "head gradients"};
    const char *between = "";
    int at = snprintf(text, FP8_TEXT, "%s", fp8 ? "" : "none");
    for (int i = 0; i < FP8_USES; i++) {
        if (!(fp8 & 1u << i)) continue;
        at += snprintf(text + at, (size_t)(FP8_TEXT - at), "%s%s", between, names[i]);
        between = ", ";
    }
}

// Which sizes keep products in bf16 that would be in FP8 otherwise.
static void tell_sizes(const LayoutRequest *request, unsigned on) {
    enum { PIECE = 16 };
    const ModelConfig *c = &request->config;
    const Mesh *mesh = &request->mesh;
    int64_t tokens = (int64_t)request->micro_batch * request->seq / mesh->cp;
    bool chunks = request->logits_rows > 0 && request->logits_rows < tokens;
    const struct {
        unsigned uses;
        const char *what;
        int64_t size;
    } sizes[] = {{FP8_ALL, "the width of the model", c->hidden},
                 {FP8_ALL, "the tokens of a rank's micro-batch", tokens},
                 {FP8_QKV_FORWARD, "queries, keys and values", layout_qkv_dim(request)},
                 {FP8_O_FORWARD, "what attention hands on", model_attention_dim(c) / mesh->tp},
                 {FP8_MLP, "the width of the MLP", model_sparse_layers(c) < c->layers ? c->ffn / mesh->tp : 0},
                 {FP8_EXPERTS, "the width of the experts", model_sparse_layers(c) ? c->moe_ffn / mesh->etp : 0},
                 {FP8_HEAD, "the vocabulary", layout_vocab_rows(request)},
                 {FP8_HEAD, "recompute.logits_rows", chunks ? request->logits_rows : 0}};
    TextBuffer text = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size % PIECE && sizes[i].uses & ~request->fp8_off)
            text_buffer_format(&text, "%s%s %lld", text.length ? ", " : "", sizes[i].what, (long long)sizes[i].size);
    if (text.length)
        log_warn("%s in bf16: FP8 takes sizes that are multiples of 16, and on a rank %s %s not",
                 on ? "some products stay" : "every product stays", text.data, strchr(text.data, ',') ? "are" : "is");
    text_buffer_free(&text);
}

Status fp8_choose(Ops *ops, LayoutRequest *request, Comm *all) {
    unsigned on = layout_fp8(request);
    char text[FP8_TEXT];
    if (request->precision != PRECISION_FP8) return NULL;
    if (request->rank == 0) tell_sizes(request, on);
    if (!on) return NULL;
    if (!ops->fp8)
        return status_hint(status_usage("FP8 needs a GPU with compute capability 8.9 or more (Ada, Hopper, Blackwell), "
                                        "and %s has less",
                                        ops->device),
                           "train in bf16: train.precision = \"bf16\"");
    if (ops->kind == DEVICE_CUDA) { // the CPU emulates all of them
        static const Race races[] = {
            {FP8_ALL & ~FP8_HEAD, race_layer, layer_key, "a layer's micro-step"},
            {FP8_HEAD, race_head, head_key, "a micro-step of one layer in bf16 and the LM head"},
        };
        for (size_t i = 0; i < sizeof races / sizeof *races; i++)
            TRY(choose(ops, request, &races[i], &on));
        TRY(share_choice(ops, all, &on));
    }
    request->fp8_off = FP8_ALL & ~on;
    fp8_describe(on, text);
    log_info("products in FP8: %s%s", text, on ? "" : " (bf16 is faster for this model)");
    return NULL;
}
