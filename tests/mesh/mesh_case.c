#include "mesh_case.h"

#include "base/rng.h"

#include <stdio.h>

typedef struct Dice {
    uint64_t seed, thrown;
} Dice;

static int dice_below(Dice *dice, int bound) {
    return (int)rng_below(dice->seed, RNG_STREAM_TEST, dice->thrown++, (uint64_t)bound);
}

#define DICE_CHOICE(dice, ...) \
    (((const int[]){__VA_ARGS__})[dice_below(dice, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))])

// ---- what is drawn --------------------------------------------------------------------------------------------------

static void draw_experts(ModelConfig *config, Dice *dice) {
    config->arch = MODEL_QWEN3_MOE;
    config->experts = DICE_CHOICE(dice, 2, 4, 6, 8, 12);
    config->top_k = 1 + dice_below(dice, config->experts < 4 ? config->experts : 4);
    config->moe_ffn = DICE_CHOICE(dice, 4, 8, 12, 20);
    config->norm_topk = dice_below(dice, 2);
    config->aux_coef = dice_below(dice, 3) ? 0.02f : 0.0f;
    bool mixed = dice_below(dice, 3) == 0; // dense layers between sparse ones
    for (int i = 0; i < config->layers; i++)
        config->sparse[i] = !mixed || dice_below(dice, 2);
    config->sparse[dice_below(dice, config->layers)] = true;
}

static ModelConfig draw_model(Dice *dice) {
    ModelConfig config = {.arch = dice_below(dice, 2) ? MODEL_LLAMA : MODEL_QWEN3,
                          .vocab = DICE_CHOICE(dice, 31, 48, 61, 97),
                          .layers = DICE_CHOICE(dice, 1, 2, 2, 3, 4, 5, 6),
                          .heads = DICE_CHOICE(dice, 2, 4, 4, 6, 8),
                          .head_dim = DICE_CHOICE(dice, 4, 8, 12),
                          .ffn = DICE_CHOICE(dice, 8, 24, 40, 48),
                          .hidden = DICE_CHOICE(dice, 12, 16, 24, 40),
                          .max_positions = 64,
                          .norm_eps = 1e-5f,
                          .init_std = 0.08f,
                          .tied = dice_below(dice, 2),
                          .rope_theta = 10000,
                          .sparse_step = 1,
                          .bos = -1,
                          .eos = -1};
    do {
        config.kv_heads = 1 + dice_below(dice, config.heads);
    } while (config.heads % config.kv_heads);
    if (dice_below(dice, 2)) draw_experts(&config, dice);
    return config;
}

static int draw_degree(Dice *dice, int *room) { // that divides what is left of the ranks
    int degree;
    do {
        degree = DICE_CHOICE(dice, 1, 1, 2, 2, 3, 4, 8);
    } while (degree > *room);
    *room /= degree;
    return degree;
}

static Mesh draw_mesh(Dice *dice, const ModelConfig *config, int ranks) {
    int room = ranks, first = dice_below(dice, 4);
    Mesh mesh = MESH_SINGLE;
    int *axes[] = {&mesh.dp, &mesh.tp, &mesh.cp, &mesh.pp};
    for (int i = 0; i < 4; i++) // each axis is the first, which has the most room, as often as the others
        *axes[(first + i) % 4] = draw_degree(dice, &room);
    mesh.zero = dice_below(dice, 4);
    if (!config->experts) return mesh;
    mesh.etp = dice_below(dice, 3) ? 1 : mesh.tp;
    do {
        mesh.ep = 1 + dice_below(dice, mesh_stage_ranks(&mesh));
    } while (mesh_stage_ranks(&mesh) % (mesh.ep * mesh.etp));
    return mesh;
}

static LayoutRequest draw_request(Dice *dice, int ranks) {
    LayoutRequest request = {.config = draw_model(dice),
                             .micro_batch = 1 + dice_below(dice, 3),
                             .seq = DICE_CHOICE(dice, 4, 8, 12, 16, 24, 32),
                             .recompute = (Recompute)dice_below(dice, 3),
                             .documents = dice_below(dice, 2),
                             .device = DEVICE_CPU,
                             .threads = 1,
                             .logits_rows = DICE_CHOICE(dice, 5, 16, 64)};
    request.mesh = draw_mesh(dice, &request.config, ranks);
    return request;
}

// Whole pieces for the tensor cores in most products. Any may stay in bf16: a device chooses by time. ZeRO 3, which
// keeps no weights in FP8, is every other one.
static void suit_fp8(LayoutRequest *request, Dice *dice) {
    ModelConfig *config = &request->config;
    request->precision = PRECISION_FP8;
    config->hidden = (config->hidden + 15) / 16 * 16;
    config->head_dim *= 4;
    config->ffn *= 4;
    config->vocab = (config->vocab + 15) / 16 * 16;
    request->seq *= 2;
    request->fp8_off = dice_below(dice, 3) ? 0 : (unsigned)dice_below(dice, FP8_ALL);
    if (dice_below(dice, 2)) request->mesh.zero = 3;
}

// A request that the layout refuses is no case: what is refused has tests of its own.
static bool possible(const LayoutRequest *request) {
    Layout layout;
    Status status = pipeline_schedule_check(layout_schedule(request), request->mesh.pp, layout_chunks(request),
                                            request->micro_batches);
    if (!status) status = layout_build(&layout, request);
    bool built = !status;
    if (built) layout_free(&layout);
    status_free(status);
    const Mesh *mesh = &request->mesh;
    return built && mesh_ranks(mesh) > 1 && (request->precision != PRECISION_FP8 || layout_fp8(request));
}

MeshCase mesh_case_draw(uint64_t seed, int ranks, Precision precision) {
    Dice dice = {.seed = seed};
    MeshCase c = {.seed = seed};
    do {
        c.request = draw_request(&dice, ranks);
        if (precision == PRECISION_FP8) suit_fp8(&c.request, &dice);
        c.accum = DICE_CHOICE(&dice, 1, 2, 3, 4, 6, 8);
        c.request.micro_batches = c.accum;
        if (c.request.mesh.pp > 1) {
            c.request.schedule = dice_below(&dice, 2) ? PIPELINE_GPIPE : PIPELINE_1F1B;
            c.request.virtual_stages = 1 + dice_below(&dice, 3); // more than one: interleaved
        }
    } while (!possible(&c.request));
    c.masked = DICE_CHOICE(&dice, 0, 2, 7);
    c.uneven = mesh_case_micro_batches(&c) > 1 && dice_below(&dice, 4) == 0;
    c.clip = DICE_CHOICE(&dice, 0, 1) ? 0.25f : 0;
    if (c.request.config.experts) {
        c.z_loss_coef = dice_below(&dice, 2) ? 0.01f : 0;
        c.balance = dice_below(&dice, 2) ? BALANCE_LAYERS : BALANCE_TOGETHER;
        c.router_bias = dice_below(&dice, 3) == 0;
    }
    return c;
}

void mesh_case_print(const MeshCase *c, char *text, size_t size) {
    const LayoutRequest *r = &c->request;
    const ModelConfig *m = &r->config;
    const Mesh *mesh = &r->mesh;
    int length = snprintf(
        text, size,
        "--precision %s --seed %llu: dp %d tp %d pp %d cp %d ep %d etp %d zero %d, %d layers of %d, %d/%d heads of "
        "%d, ffn %d, vocab %d%s%s, %d x %d tokens, %d micro-batches, recompute %s%s%s",
        precision_name(r->precision), (unsigned long long)c->seed, mesh->dp, mesh->tp, mesh->pp, mesh->cp, mesh->ep,
        mesh->etp, mesh->zero, m->layers, m->hidden, m->heads, m->kv_heads, m->head_dim, m->ffn, m->vocab,
        m->tied ? ", tied" : "", model_qk_norm(m) ? ", qk-norm" : "", r->micro_batch, r->seq,
        mesh_case_micro_batches(c), recompute_name(r->recompute), r->documents ? ", documents" : "",
        c->uneven ? ", uneven" : "");
    if (m->experts && length > 0 && (size_t)length < size)
        length += snprintf(text + length, size - (size_t)length, ", %d of %d experts of %d in %d layers%s", m->top_k,
                           m->experts, m->moe_ffn, model_sparse_layers(m), c->router_bias ? ", router bias" : "");
    if (r->precision == PRECISION_FP8 && length > 0 && (size_t)length < size)
        snprintf(text + length, size - (size_t)length, ", fp8 without %#x", FP8_ALL & ~layout_fp8(r));
}

int mesh_case_micro_batches(const MeshCase *c) {
    return c->accum * c->request.mesh.dp;
}

int64_t mesh_case_batch(const MeshCase *c, int step, int index, int32_t *ids, int32_t *targets, int32_t *doc_start) {
    const LayoutRequest *r = &c->request;
    Dice dice = {.seed = c->seed, .thrown = (uint64_t)(step * 1000 + index + 1) << 32};
    bool nothing = c->uneven && index == mesh_case_micro_batches(c) - 1;
    int64_t valid = 0;
    for (int i = 0; i < r->micro_batch * r->seq; i++) {
        int position = i % r->seq;
        bool starts = position == 0 || dice_below(&dice, 6) == 0;
        doc_start[i] = starts ? position : doc_start[i - 1];
        ids[i] = dice_below(&dice, r->config.vocab);
        targets[i] = nothing || dice_below(&dice, 10) < c->masked ? -1 : dice_below(&dice, r->config.vocab);
        valid += targets[i] >= 0;
    }
    return valid;
}
