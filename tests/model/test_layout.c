// The layout table: sums, sharing, and how every parallel degree cuts it.
#include "model/small_models.h"
#include "ops/cuda/attention_sm90.h"

static LayoutRequest request_of(const char *preset) {
    LayoutRequest request = {.mesh = MESH_SINGLE,
                             .micro_batch = 4,
                             .seq = 512,
                             .precision = PRECISION_BF16,
                             .device = DEVICE_CUDA,
                             .threads = 1};
    assert_ok(model_preset(&request.config, preset));
    return request;
}

static void test_parameters_sum_to_the_model(void **state) {
    (void)state;
    for (int i = 0; i < model_preset_count(); i++) {
        LayoutRequest request = request_of(model_preset_name(i));
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        int64_t sum = 0, parts = 0;
        for (int p = 0; p < layout.param_count; p++) {
            const LayoutParam *param = &layout.params[p];
            sum += param->count;
            for (int k = 0; k < layout_slice_count(&layout, param); k++)
                parts += layout_slice(&layout, param, k).count;
            assert_true(param->decay == (param->offset < layout.decay_count));
        }
        assert_int_equal(sum, model_parameters(&request.config).total);
        assert_int_equal(parts, sum);
        layout_free(&layout);
    }
}

// Passes through two chunks of a rank have slots of their own.
static bool in_other_chunks(const Layout *layout, const LayoutActivation *a, const LayoutActivation *b) {
    if (a->layer < 0 || b->layer < 0) return false;
    return layout_chunk(layout, a->layer) != layout_chunk(layout, b->layer);
}

// No two tensors that are alive at the same time share a byte, and none sticks out of its block.
static void test_nothing_alive_overlaps(void **state) {
    (void)state;
    static const Mesh meshes[] = {
        MESH_SINGLE, {2, 1, 2, 1, 2, 1, 3}, {4, 1, 4, 1, 1, 1, 0}, {4, 1, 1, 4, 1, 1, 1}, {1, 1, 2, 1, 1, 1, 0}};
    for (int preset = 0; preset < model_preset_count(); preset++) {
        for (int variant = 0; variant < 3 * 5; variant++) {
            LayoutRequest request = request_of(model_preset_name(preset));
            request.recompute = (Recompute)(variant % 3);
            request.mesh = meshes[variant / 3];
            request.rank = request.mesh.pp / 2 * mesh_stage_ranks(&request.mesh);
            request.virtual_stages = variant / 3 == 4 ? 2 : 1;
            if (request.mesh.ep > 1 && !request.config.experts) continue;
            if (request.mesh.pp * request.virtual_stages > request.config.layers) continue;
            Layout layout;
            assert_ok(layout_build(&layout, &request));
            for (int i = 0; i < layout.activation_count; i++) {
                const LayoutActivation *a = &layout.activations[i];
                int64_t room = a->in_flight ? layout.slot_bytes
                               : a->kept    ? layout.slot_offset
                                            : layout.bytes[LAYOUT_TEMPORARIES];
                assert_true(a->offset >= 0 && a->offset + a->bytes <= room && a->offset % 256 == 0);
                for (int k = 0; k < i; k++) {
                    const LayoutActivation *b = &layout.activations[k];
                    bool alive = a->kept ? b->kept && a->in_flight == b->in_flight && !in_other_chunks(&layout, a, b)
                                         : !b->kept && a->first <= b->last && b->first <= a->last;
                    if (alive && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                        fail_msg("%s: activations %d and %d overlap", model_preset_name(preset), a->id, b->id);
                }
            }
            layout_free(&layout);
        }
    }
}

static int64_t bytes_of(const LayoutRequest *request, LayoutKind kind) {
    Layout layout;
    assert_ok(layout_build(&layout, request));
    int64_t bytes = layout.bytes[kind];
    layout_free(&layout);
    return bytes;
}

// What the other temporaries leave may lie in pieces, or be too little: the fastest kernel has room for its sums of dQ.
static void test_attention_backward_is_lent_what_its_kernel_needs(void **state) {
    (void)state;
    for (int preset = 0; preset < model_preset_count(); preset++) {
        for (int variant = 0; variant < 2 * 3 * 3; variant++) {
            LayoutRequest request = request_of(model_preset_name(preset));
            request.precision = variant % 2 ? PRECISION_FP8 : PRECISION_BF16;
            request.recompute = (Recompute)(variant / 2 % 3);
            request.logits_rows = variant / 6 * 4096;
            request.seq = 2048;
            request.micro_batch = 16;
            const ModelConfig *c = &request.config;
            size_t needed = attention_sm90_backward_workspace(request.micro_batch, request.seq, c->heads, c->head_dim);
            Layout layout;
            assert_ok(layout_build(&layout, &request));
            const LayoutActivation *scratch = layout_activation(&layout, ACT_SCRATCH, -1, STEP_BACKWARD);
            assert_true((size_t)layout.bytes[LAYOUT_WORKSPACE] >= needed || (size_t)scratch->bytes >= needed);
            layout_free(&layout);
        }
    }
}

// A wide vocabulary leaves enough when its logits are gone, so that lending costs nothing, and most of it is lent: of
// FP8 too, whose smaller chunks leave it in pieces.
static void test_scratch_costs_nothing_where_logits_are_wide(void **state) {
    (void)state;
    static const char *const presets[] = {"smollm-360m", "llama-3.2-1b", "qwen3-moe-500m"};
    for (int variant = 0; variant < 3 * 2; variant++) {
        LayoutRequest request = request_of(presets[variant / 2]);
        request.precision = variant % 2 ? PRECISION_FP8 : PRECISION_BF16;
        request.seq = 2048;
        request.micro_batch = 16;
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        int64_t left = layout.bytes[LAYOUT_TEMPORARIES], most = 0; // of the phases' sums, which no placing can undercut
        for (int phase = 0; phase <= PHASE_EMBEDDING_BACKWARD; phase++) {
            int64_t alive = 0;
            for (int i = 0; i < layout.activation_count; i++) {
                const LayoutActivation *act = &layout.activations[i];
                if (!act->kept && act->id != ACT_SCRATCH && (int)act->first <= phase && (int)act->last >= phase)
                    alive += act->bytes;
            }
            if (alive > most) most = alive;
            if (phase == PHASE_ATTENTION_BACKWARD) left -= alive;
        }
        assert_true(layout.bytes[LAYOUT_TEMPORARIES] <= most + most / 8);
        assert_true(2 * layout_activation(&layout, ACT_SCRATCH, -1, STEP_BACKWARD)->bytes >= left);
        layout_free(&layout);
    }
}

static void test_a_stage_without_the_head_has_no_room_for_logits(void **state) {
    (void)state;
    for (int preset = 0; preset < model_preset_count(); preset++) {
        for (int variant = 0; variant < 2 * 3; variant++) {
            LayoutRequest request = request_of(model_preset_name(preset));
            request.precision = variant % 2 ? PRECISION_FP8 : PRECISION_BF16;
            request.recompute = (Recompute)(variant / 2);
            request.seq = 4096;
            request.mesh.pp = 2;
            Layout first, last;
            assert_ok(layout_build(&first, &request));
            request.rank = 1;
            assert_ok(layout_build(&last, &request));
            const LayoutActivation *logits = layout_activation(&last, ACT_LOGITS, -1, STEP_FORWARD);
            assert_non_null(logits);
            assert_null(layout_activation(&first, ACT_LOGITS, -1, STEP_FORWARD));
            if (variant == 0 && strcmp(model_preset_name(preset), "llama-3-8b") == 0)
                assert_true(first.bytes[LAYOUT_TEMPORARIES] <= last.bytes[LAYOUT_TEMPORARIES] - logits->bytes / 2);
            layout_free(&first);
            layout_free(&last);
        }
    }
}

// Full recompute: what only a layer's forward pass needs has gone when its backward pass begins. In FP8 gate and up on
// their way to SwiGLU (2 bytes) then leave their place to their gradients both ways round (1 byte each).
static void test_a_forward_pass_that_runs_again_shares_room_with_the_backward_pass(void **state) {
    (void)state;
    static const char *const presets[] = {"smollm-360m", "llama-3.2-1b", "llama-3-8b"};
    for (int i = 0; i < 3; i++) {
        LayoutRequest request = request_of(presets[i]);
        request.precision = PRECISION_FP8;
        request.recompute = RECOMPUTE_FULL;
        request.seq = 4096;
        request.micro_batch = 8;
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        int64_t apart = 0; // what is there in the backward half of a layer, if nothing shared its room
        for (int k = 0; k < layout.activation_count; k++) {
            const LayoutActivation *act = &layout.activations[k];
            bool scratch = act->id == ACT_SCRATCH;
            if (!act->kept && !scratch && act->first <= PHASE_MLP_BACKWARD && act->last >= PHASE_RECOMPUTE)
                apart += act->bytes;
        }
        const LayoutActivation *gate_up = layout_activation(&layout, ACT_FP8_GATE_UP, -1, STEP_RECOMPUTE);
        assert_true(layout.bytes[LAYOUT_TEMPORARIES] <= apart - gate_up->bytes);
        layout_free(&layout);
    }
}

static void test_recompute_keeps_less_and_less(void **state) {
    (void)state;
    LayoutRequest request = request_of("qwen3-moe-500m");
    int64_t kept[3];
    for (int i = 0; i < 3; i++) {
        request.recompute = (Recompute)i;
        kept[i] = bytes_of(&request, LAYOUT_ACTIVATIONS);
    }
    assert_true(kept[0] > kept[1] && kept[1] > kept[2]);
}

static void test_zero_stages_shard_state(void **state) {
    (void)state;
    LayoutRequest request = request_of("llama-3-8b");
    request.mesh.dp = 8;
    int64_t parameters = model_parameters(&request.config).total;
    static const double bytes_per_parameter[4][4] = {
        // weights, master, gradients, moments: 2 + 2 + 4 + 8 bytes, sharded by 8 from stage 1, 2 and 3 on
        {2, 2, 4, 8},
        {2, 0.25, 4, 1},
        {2, 0.25, 0.5, 1},
        {0.25, 0.25, 0.5, 1},
    };
    for (int zero = 0; zero < 4; zero++) {
        request.mesh.zero = zero;
        for (int kind = LAYOUT_WEIGHTS; kind <= LAYOUT_MOMENTS; kind++) {
            double expected = bytes_per_parameter[zero][kind] * (double)parameters;
            assert_true(fabs((double)bytes_of(&request, (LayoutKind)kind) / expected - 1) < 1e-4); // alignment
        }
    }
}

static void test_one_rank_has_nobody_to_shard_with(void **state) {
    (void)state;
    LayoutRequest request = {.mesh = MESH_SINGLE, .micro_batch = 1, .seq = 128, .device = DEVICE_CPU, .threads = 1};
    Layout whole, sharded;
    assert_ok(model_preset(&request.config, "demo-llama"));
    assert_ok(layout_build(&whole, &request));
    request.mesh.zero = 3;
    assert_ok(layout_build(&sharded, &request));
    assert_int_equal(sharded.total_bytes, whole.total_bytes);
    layout_free(&whole);
    layout_free(&sharded);
}

// Two layers, embedding or head, and the vectors can be on the wire at once: 2 bytes for each of their elements.
static void test_gradients_in_bf16_have_a_place_on_the_wire(void **state) {
    (void)state;
    LayoutRequest request = {.mesh = MESH_SINGLE, .micro_batch = 1, .seq = 128, .device = DEVICE_CPU, .threads = 1};
    assert_ok(model_preset(&request.config, "demo-moe"));
    for (int i = 0; i < 8; i++) {
        Layout plain, wire;
        request.mesh.dp = i < 4 ? 4 : 1;
        request.mesh.zero = i % 4;
        request.reduce = DTYPE_F32;
        assert_ok(layout_build(&plain, &request));
        request.reduce = DTYPE_BF16;
        assert_ok(layout_build(&wire, &request));
        int64_t elements = 2 * wire.layer_elements + wire.edge_elements + wire.vector_elements;
        int64_t added = request.mesh.dp > 1 ? (2 * elements + 255) / 256 * 256 : 0;
        assert_int_equal(wire.total_bytes - plain.total_bytes, added);
        layout_free(&plain);
        layout_free(&wire);
    }
}

static void test_tensor_parallel_ranks_hold_their_share(void **state) {
    (void)state;
    LayoutRequest request = request_of("llama-3-70b");
    request.mesh.tp = 8;
    Layout layout;
    assert_ok(layout_build(&layout, &request));
    const LayoutParam *qkv = layout_param(&layout, PARAM_QKV, 0), *down = layout_param(&layout, PARAM_DOWN, 0);
    assert_int_equal(qkv->shape[0], (64 / 8 + 2) * 128);
    assert_int_equal(down->shape[1], 28672 / 8);
    assert_int_equal(layout_param(&layout, PARAM_ATTN_NORM, 0)->count, 8192);
    layout_free(&layout);
    request.mesh.tp = 16; // fewer KV heads than ranks: each keeps a copy of one
    assert_ok(layout_build(&layout, &request));
    assert_int_equal(layout_param(&layout, PARAM_QKV, 0)->shape[0], (64 / 16 + 2) * 128);
    layout_free(&layout);
}

// ---- slices: every element of every HF tensor is on the ranks of a mesh, each axis that does not cut it aside ----

enum { COVER_MAX = 4096 };

typedef struct Cover { // of one HF tensor: how often each element was found
    char name[128];
    int64_t rows, cols;
    int *times;
} Cover;

static Cover covers[COVER_MAX];
static int cover_count;

static Cover *cover_of(const LayoutSlice *slice) {
    for (int i = 0; i < cover_count; i++)
        if (strcmp(covers[i].name, slice->name) == 0) return &covers[i];
    Cover *cover = &covers[cover_count++];
    assert_true(cover_count < COVER_MAX);
    snprintf(cover->name, sizeof cover->name, "%s", slice->name);
    cover->rows = slice->dims == 1 ? 1 : slice->shape[0];
    cover->cols = slice->dims == 1 ? slice->shape[0] : slice->shape[1];
    cover->times = xcalloc((size_t)(cover->rows * cover->cols), sizeof(int));
    return cover;
}

// Slices of a parameter lie inside it and not on each other; the rest is the padding of an uneven cut.
static void add_slices(const Layout *layout, const LayoutParam *param) {
    bool *taken = xcalloc((size_t)param->count, sizeof *taken);
    for (int k = 0; k < layout_slice_count(layout, param); k++) {
        LayoutSlice slice = layout_slice(layout, param, k);
        Cover *cover = cover_of(&slice);
        assert_int_equal(slice.count, slice.rows * slice.cols);
        for (int64_t i = 0; i < slice.count; i++) {
            int64_t row = i / slice.cols, col = i % slice.cols, place = slice.at + row * slice.stride + col;
            assert_in_range(place, 0, param->count - 1);
            assert_false(taken[place]);
            taken[place] = true;
            assert_in_range(slice.row + row, 0, cover->rows - 1);
            assert_in_range(slice.col + col, 0, cover->cols - 1);
            cover->times[(slice.row + row) * cover->cols + slice.col + col]++;
        }
    }
    free(taken);
}

// How many ranks hold an element of the tensor.
static int expected_times(const LayoutRequest *r, const char *name) {
    const Mesh *m = &r->mesh;
    int data = m->dp * m->cp;
    bool cut_by_tp = strstr(name, "_proj") || strstr(name, "embed_tokens") || strstr(name, "lm_head");
    if (strstr(name, "mlp.experts.")) return data * m->tp / (m->ep * m->etp);
    if (strstr(name, "embed_tokens") && r->config.tied && m->pp > 1) return 2 * data; // both ends of the pipeline
    if ((strstr(name, "k_proj") || strstr(name, "v_proj")) && m->tp > r->config.kv_heads)
        return m->tp / r->config.kv_heads * data;
    return (cut_by_tp ? 1 : m->tp) * data;
}

static void check_mesh(LayoutRequest request) {
    cover_count = 0;
    int64_t whole = model_parameters(&request.config).total;
    for (request.rank = 0; request.rank < mesh_ranks(&request.mesh); request.rank++) {
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        for (int i = 0; i < layout.param_count; i++) {
            add_slices(&layout, &layout.params[i]);
            if (i > 0) // and parameters do not lie on each other
                assert_true(layout.params[i].offset >= layout.params[i - 1].offset + layout.params[i - 1].count);
        }
        layout_free(&layout);
    }
    int64_t elements = 0;
    for (int i = 0; i < cover_count; i++) {
        int times = expected_times(&request, covers[i].name);
        for (int64_t k = 0; k < covers[i].rows * covers[i].cols; k++)
            if (covers[i].times[k] != times)
                fail_msg("%s element %lld is on %d ranks, not %d", covers[i].name, (long long)k, covers[i].times[k],
                         times);
        elements += covers[i].rows * covers[i].cols;
        free(covers[i].times);
    }
    assert_int_equal(elements, whole);
}

static void test_slices_of_all_ranks_cover_every_tensor(void **state) {
    (void)state;
    static const Mesh meshes[] = {
        {1, 1, 1, 1, 1, 1, 0}, {1, 2, 1, 1, 1, 1, 0}, {1, 6, 1, 1, 1, 1, 0},  {1, 1, 3, 1, 1, 1, 0},
        {2, 2, 3, 1, 1, 1, 3}, {1, 3, 2, 1, 1, 1, 0}, {5, 1, 1, 5, 1, 1, 0},  {1, 2, 1, 1, 1, 2, 0},
        {5, 2, 3, 5, 1, 2, 1}, {2, 2, 1, 1, 2, 1, 0}, {10, 1, 2, 5, 1, 1, 3}, {5, 6, 1, 5, 1, 3, 2},
    };
    for (int which = 0; which < SMALL_COUNT; which++)
        for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
            LayoutRequest request = small_request((SmallModel)which);
            request.mesh = meshes[i];
            request.seq = 24;
            if (!request.config.experts && request.mesh.ep * request.mesh.etp > 1) continue;
            if (request.config.kv_heads % request.mesh.tp && request.mesh.tp % request.config.kv_heads) continue;
            check_mesh(request);
            request.virtual_stages = 2;
            request.config.layers = 7;
            if (request.mesh.pp > 1) check_mesh(request);
        }
}

// What a rank writes into a checkpoint: owned elements of the slices that are its own.
static void add_written(const Layout *layout, const LayoutParam *param) {
    int64_t first, count;
    layout_owned(layout, param, &first, &count);
    for (int k = 0; k < layout_slice_count(layout, param); k++) {
        LayoutSlice slice = layout_slice(layout, param, k);
        Cover *cover = cover_of(&slice);
        if (!layout_slice_owner(layout, param, k)) continue;
        for (int64_t i = 0; i < slice.count; i++) {
            int64_t row = i / slice.cols, col = i % slice.cols, place = slice.at + row * slice.stride + col;
            if (place >= first && place < first + count)
                cover->times[(slice.row + row) * cover->cols + slice.col + col]++;
        }
    }
}

static void check_written(LayoutRequest request) {
    const Mesh *mesh = &request.mesh;
    int64_t whole = model_parameters(&request.config).total, elements = 0;
    cover_count = 0;
    for (request.rank = 0; request.rank < mesh_ranks(mesh); request.rank++) {
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        for (int i = 0; i < layout.param_count; i++)
            add_written(&layout, &layout.params[i]);
        layout_free(&layout);
    }
    for (int i = 0; i < cover_count; i++) {
        for (int64_t k = 0; k < covers[i].rows * covers[i].cols; k++)
            if (covers[i].times[k] != 1)
                fail_msg("dp %d tp %d pp %d ep %d cp %d etp %d zero %d: %s element %lld is written %d times", mesh->dp,
                         mesh->tp, mesh->pp, mesh->ep, mesh->cp, mesh->etp, mesh->zero, covers[i].name, (long long)k,
                         covers[i].times[k]);
        elements += covers[i].rows * covers[i].cols;
        free(covers[i].times);
    }
    assert_int_equal(elements, whole);
}

static void test_every_element_is_written_by_one_rank(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++) {
        LayoutRequest request = small_request((SmallModel)which);
        request.seq = 24;
        // Every product of these degrees that the model can be cut into.
        static const int dps[] = {1, 2, 3, 5}, tps[] = {1, 2, 6}, eps[] = {1, 5}, etps[] = {1, 2, 3};
        for (int i = 0; i < 4 * 3 * 3 * 2 * 3 * 2 * 4; i++) {
            int rest = i;
            request.mesh = MESH_SINGLE;
            request.mesh.zero = rest % 4, rest /= 4;
            request.mesh.dp = dps[rest % 4], rest /= 4;
            request.mesh.tp = tps[rest % 3], rest /= 3;
            request.mesh.pp = 1 + rest % 3, rest /= 3;
            request.mesh.ep = eps[rest % 2], rest /= 2;
            request.mesh.etp = etps[rest % 3], rest /= 3;
            request.mesh.cp = 1 + rest;
            if (!request.config.experts && request.mesh.ep * request.mesh.etp > 1) continue;
            if (mesh_data_ranks(&request.mesh) * request.mesh.tp % (request.mesh.ep * request.mesh.etp)) continue;
            if (request.mesh.cp > 1 && (request.mesh.dp > 2 || request.mesh.zero % 3)) continue; // cp is as dp here
            check_written(request);
        }
    }
}

static void test_pipeline_stages_cover_all_layers_once(void **state) {
    (void)state;
    for (int layers = 1; layers <= 126; layers++) {
        for (int stages = 1; stages <= 16 && stages <= layers; stages++) {
            int next = 0, most = 0, ends = 0;
            for (int s = 0; s < stages; s++) {
                int first, count;
                mesh_place_layers(stages, layers, s, &first, &count);
                assert_int_equal(first, next);
                assert_true(count >= 1);
                next += count;
                most = count > most ? count : most;
                if (s == 0 || s == stages - 1) ends = count > ends ? count : ends;
            }
            assert_int_equal(next, layers);
            assert_int_equal(most, (layers + stages - 1) / stages);
            assert_true(ends <= most);
        }
    }
}

// Slots are taken by forward halves and given back by backward halves, as a run does it: the layout has as many as that
// takes and none that stays empty, each as large as the largest chunk.
static void test_slots_are_as_many_as_the_schedule_takes(void **state) {
    (void)state;
    for (int i = 0; i < 3 * 4 * 3 * 6; i++) {
        int rest = i, chunks = 1 + rest % 3, micro;
        rest /= 3;
        int pp = 1 + rest % 4;
        rest /= 4;
        LayoutRequest request = small_request(rest % 3 == 2 ? SMALL_MOE : SMALL_LLAMA);
        request.schedule = rest % 3 == 1 ? PIPELINE_GPIPE : PIPELINE_1F1B;
        rest /= 3;
        micro = chunks > 1 ? pp * (1 + rest % 3) : 1 + rest;
        request.config.layers = 13;
        for (int k = 0; k < 13; k++)
            request.config.sparse[k] = request.config.experts && k % 3 != 1;
        request.mesh.pp = pp, request.virtual_stages = chunks, request.micro_batches = micro;
        for (request.rank = 0; request.rank < pp; request.rank++) {
            Layout layout;
            assert_ok(layout_build(&layout, &request));
            assert_int_equal(layout.chunk_count, pp > 1 ? chunks : 1);
            int taken = 0, most = pp > 1 ? 0 : 1;
            int64_t largest = 0, shared = 0, once = 0;
            for (int64_t k = 0; pp > 1 && k < pipeline_task_count(chunks, micro); k++) {
                PipelineTask task = pipeline_task(layout_schedule(&request), pp, chunks, request.rank, micro, k);
                taken += task.pass == PIPELINE_FORWARD ? 1 : -1;
                most = taken > most ? taken : most;
            }
            assert_int_equal(taken, 0);
            assert_int_equal(layout.slots, most);
            for (int c = 0; c < layout.chunk_count; c++) {
                int64_t bytes = 0;
                shared = once = 0;
                for (int k = 0; k < layout.activation_count; k++) {
                    const LayoutActivation *act = &layout.activations[k];
                    if (!act->kept) continue;
                    bool here = act->layer >= layout.chunks[c].first &&
                                act->layer < layout.chunks[c].first + layout.chunks[c].count;
                    *(act->layer >= 0  ? &bytes
                      : act->in_flight ? &shared
                                       : &once) += act->layer < 0 || here ? act->bytes : 0;
                }
                largest = bytes > largest ? bytes : largest;
            }
            assert_int_equal(layout.bytes[LAYOUT_ACTIVATIONS], once + most * (shared + largest));
            layout_free(&layout);
        }
    }
}

static void test_expert_parallel_ranks_hold_their_experts(void **state) {
    (void)state;
    LayoutRequest request = request_of("qwen3-30b-a3b");
    request.mesh = (Mesh){.dp = 8, .tp = 1, .pp = 1, .ep = 4, .cp = 1, .etp = 1, .zero = 3};
    Layout layout;
    assert_ok(layout_build(&layout, &request));
    assert_int_equal(layout_param(&layout, PARAM_EXPERT_DOWN, 0)->shape[0], 32);
    // Everything is cut 8 ways in the end: 4 by expert, 2 by ZeRO; dense weights 8 by ZeRO.
    assert_true(fabs((double)layout.bytes[LAYOUT_WEIGHTS] * 8 / (2.0 * 30532122624.0) - 1) < 1e-3);
    layout_free(&layout);
}

// The products read tokens where they stand; only where these come from other ranks are their rows copied.
static void test_rows_of_experts_are_kept_only_where_experts_are_spread(void **state) {
    (void)state;
    static const Recompute modes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    for (int i = 0; i < 9; i++) {
        LayoutRequest request = request_of("qwen3-moe-500m");
        int ep = i % 3 == 1 ? 2 : 1, etp = i % 3 == 2 ? 2 : 1;
        request.mesh = (Mesh){.dp = 2, .tp = 1, .pp = 1, .ep = ep, .cp = 1, .etp = etp};
        request.recompute = modes[i / 3];
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        for (int pass = STEP_FORWARD; pass <= STEP_BACKWARD; pass++)
            assert_int_equal(layout_activation(&layout, ACT_GATHERED, 0, (StepPass)pass) != NULL, i % 3 > 0);
        layout_free(&layout);
    }
}

static void test_impossible_requests_are_refused(void **state) {
    (void)state;
    static const struct {
        Mesh mesh;
        int micro_batch, seq;
        const char *error;
    } table[] = {
        {{1, 3, 1, 1, 1, 1, 0}, 1, 64, "attention heads 32"},
        {{1, 1, 1, 3, 1, 1, 0}, 1, 64, "expert-parallel"},
        {{1, 1, 1, 1, 3, 1, 0}, 1, 64, "the nearest lengths are 60 and 66"},
        {{1, 1, 1, 1, 4, 1, 0}, 1, 7, "the nearest length is 8"},
        {{1, 4, 1, 1, 2, 1, 0}, 1, 60, "the nearest lengths are 56 and 64"},
        {{1, 1, 99, 1, 1, 1, 0}, 1, 64, "pipeline stages"},
        {{1, 1, 1, 1, 1, 1, 4}, 1, 64, "ZeRO"},
        {{0, 1, 1, 1, 1, 1, 0}, 1, 64, "at least 1"},
        {{1, 1, 1, 1, 1, 1, 0}, 0, 64, "micro_batch"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        LayoutRequest request = request_of("qwen3-30b-a3b");
        request.mesh = table[i].mesh;
        request.micro_batch = table[i].micro_batch;
        request.seq = table[i].seq;
        Layout layout;
        assert_error(layout_build(&layout, &request), table[i].error);
    }
}

static void test_tensor_degrees_are_refused_with_the_nearest_that_fit(void **state) {
    (void)state;
    static const struct {
        int heads, kv_heads, ffn, tp;
        const char *hint;
    } table[] = {
        {32, 8, 64, 3, "the nearest degrees that fit are 2 and 4"},
        {32, 8, 64, 64, "the nearest degree that fits is 32"},
        {12, 2, 48, 3,
         "the nearest degrees that fit are 2 and 4"},       // 3 ranks can neither share 2 KV heads nor split them
        {8, 8, 12, 8, "the nearest degree that fits is 4"}, // 8 would cut the MLP unevenly
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        LayoutRequest request = request_of("llama-3.2-1b");
        request.config.heads = table[i].heads;
        request.config.kv_heads = table[i].kv_heads;
        request.config.ffn = table[i].ffn;
        request.mesh.tp = table[i].tp;
        Layout layout;
        assert_error(layout_build(&layout, &request), table[i].hint);
    }
    LayoutRequest request = request_of("llama-3.2-1b");
    request.mesh.pp = 99;
    Layout layout;
    assert_error(layout_build(&layout, &request), "take 16 stages at most");
}

// What the kernels have no room for is an error before anything runs, on the GPU alone.
static void test_models_beyond_the_gpu_kernels_are_refused(void **state) {
    (void)state;
    static const struct {
        int head_dim, experts, top_k;
        Precision precision;
        const char *error; // NULL: accepted
    } table[] = {
        {128, 0, 0, PRECISION_BF16, NULL},
        {256, 0, 0, PRECISION_BF16, "head_dim is 256"},
        {256, 0, 0, PRECISION_FP32, "head_dim is 256"},
        {100, 0, 0, PRECISION_BF16, "multiple of 8"},
        {100, 0, 0, PRECISION_FP32, NULL},
        {64, 512, 8, PRECISION_BF16, "at most 256 experts"},
        {64, 128, 40, PRECISION_BF16, "at most 256 experts, 32 of them"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        LayoutRequest request = request_of(table[i].experts ? "qwen3-moe-500m" : "smollm-360m");
        request.precision = table[i].precision;
        request.config.head_dim = table[i].head_dim;
        if (table[i].experts) request.config.experts = table[i].experts, request.config.top_k = table[i].top_k;
        if (table[i].error)
            assert_error(layout_check_kernels(&request), table[i].error);
        else
            assert_ok(layout_check_kernels(&request));
        request.device = DEVICE_CPU;
        assert_ok(layout_check_kernels(&request));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_sum_to_the_model),
        cmocka_unit_test(test_nothing_alive_overlaps),
        cmocka_unit_test(test_attention_backward_is_lent_what_its_kernel_needs),
        cmocka_unit_test(test_a_stage_without_the_head_has_no_room_for_logits),
        cmocka_unit_test(test_scratch_costs_nothing_where_logits_are_wide),
        cmocka_unit_test(test_a_forward_pass_that_runs_again_shares_room_with_the_backward_pass),
        cmocka_unit_test(test_recompute_keeps_less_and_less),
        cmocka_unit_test(test_zero_stages_shard_state),
        cmocka_unit_test(test_one_rank_has_nobody_to_shard_with),
        cmocka_unit_test(test_gradients_in_bf16_have_a_place_on_the_wire),
        cmocka_unit_test(test_tensor_parallel_ranks_hold_their_share),
        cmocka_unit_test(test_slices_of_all_ranks_cover_every_tensor),
        cmocka_unit_test(test_every_element_is_written_by_one_rank),
        cmocka_unit_test(test_pipeline_stages_cover_all_layers_once),
        cmocka_unit_test(test_slots_are_as_many_as_the_schedule_takes),
        cmocka_unit_test(test_expert_parallel_ranks_hold_their_experts),
        cmocka_unit_test(test_rows_of_experts_are_kept_only_where_experts_are_spread),
        cmocka_unit_test(test_impossible_requests_are_refused),
        cmocka_unit_test(test_tensor_degrees_are_refused_with_the_nearest_that_fit),
        cmocka_unit_test(test_models_beyond_the_gpu_kernels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
