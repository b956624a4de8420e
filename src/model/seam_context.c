// Context parallelism: the ranks of a group share every sequence. It is cut into 2 * cp chunks, of which a rank has two
// (mesh_chunk): an early one, whose queries see few keys, and the late one that makes up for it, so that all ranks have
// the same work. A rank's tokens are its early chunk of all sequences of the micro-batch, then its late chunk of all.
//
// Keys and values travel round a ring of the ranks; each time a rank's queries meet the chunks that come by, as far as
// these are not later than they themselves, and the next ones are already on their way. What a query finds in each is
// merged in float by its log-sum-exp. In the backward pass keys and values go round again, and the float sums of their
// gradients behind them, which end where they belong.
#include "model/seam.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 2 }; // of a rank

static int context_ranks(const Model *model) { // also of a model that is only recorded
    return model->layout.request.mesh.cp;
}

static Tensor chunk_rows(Tensor tensor, int place) {
    return tensor_present(tensor) ? tensor_rows(tensor, place * (tensor.rows / CHUNKS), tensor.rows / CHUNKS) : tensor;
}

// ---- tokens and positions -------------------------------------------------------------------------------------------

void seam_upload_tokens(Model *model, ConstId id, const int32_t *host) {
    const LayoutRequest *request = &model->layout.request;
    Ops *ops = model->ops;
    void *to = model_const(model, id).data;
    size_t bytes = (size_t)model->layout.tokens * sizeof *host;
    if (context_ranks(model) == 1) {
        ops->upload(ops, to, host, bytes);
        return;
    }
    int32_t *cut = xmalloc(bytes), *at = cut;
    int64_t chunk = mesh_chunk_tokens(&request->mesh, request->seq);
    for (int place = 0; place < CHUNKS; place++)
        for (int i = 0; i < request->micro_batch; i++, at += chunk)
            memcpy(at,
                   host + (int64_t)i * request->seq + mesh_chunk(&request->mesh, model->layout.place.cp, place) * chunk,
                   (size_t)chunk * sizeof *at);
    ops->upload(ops, to, cut, bytes);
    free(cut);
}

// The rotation of a rank's chunk: its tables hold the positions of both, one behind the other.
static Rope chunk_rope(const Rope *rope, int place) {
    Rope part = *rope;
    part.seq = rope->seq / CHUNKS;
    part.first_position += place * part.seq;
    return part;
}

void seam_rope_forward(Model *model, Tensor out, Tensor rstd, Tensor in, const Rope *rope) {
    Ops *ops = model->ops;
    if (context_ranks(model) == 1) {
        ops->qk_rope_forward(ops, out, rstd, in, rope);
        return;
    }
    for (int i = 0; i < CHUNKS; i++) {
        Rope part = chunk_rope(rope, i);
        ops->qk_rope_forward(ops, chunk_rows(out, i), chunk_rows(rstd, i), chunk_rows(in, i), &part);
    }
}

void seam_rope_backward(Model *model, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                        const Rope *rope) {
    Ops *ops = model->ops;
    if (context_ranks(model) == 1) {
        ops->qk_rope_backward(ops, grad, dq_weight, dk_weight, in, rstd, rope);
        return;
    }
    for (int i = 0; i < CHUNKS; i++) {
        Rope part = chunk_rope(rope, i);
        ops->qk_rope_backward(ops, chunk_rows(grad, i), dq_weight, dk_weight, chunk_rows(in, i), chunk_rows(rstd, i),
                              &part);
    }
}

void seam_linear_rope(Model *model, Tensor out, Tensor in, Tensor weight, const Rope *rope) {
    Ops *ops = model->ops;
    if (context_ranks(model) == 1) {
        ops->linear_rope_forward(ops, out, in, weight, rope);
        return;
    }
    for (int i = 0; i < CHUNKS; i++) {
        Rope part = chunk_rope(rope, i);
        ops->linear_rope_forward(ops, chunk_rows(out, i), chunk_rows(in, i), weight, &part);
    }
}

// ---- the ring -------------------------------------------------------------------------------------------------------

typedef struct Ring {
    Ops *ops;
    Comm *cp; // NULL: of a model that is only recorded
    const Mesh *mesh;
    int size, rank;
} Ring;

static Ring ring_of(const Model *model) {
    return (Ring){model->ops, model->ranks.cp, &model->layout.request.mesh, context_ranks(model),
                  model->layout.place.cp};
}

// One of this rank's chunks of queries against one of a rank's chunks of keys, by their places.
typedef struct Pair {
    int query, key;
    bool full; // the keys are of an earlier chunk, not of the same
} Pair;

// Those that the keys of rank `from` make; the first two touch every chunk of this rank where the keys are its own.
static int pairs_with(const Ring *ring, int from, Pair pairs[3]) {
    static const Pair same[] = {{0, 0, false}, {1, 1, false}, {1, 0, true}};
    static const Pair earlier[] = {{0, 0, true}, {1, 0, true}}; // its late chunk comes after both of ours
    static const Pair later[] = {{1, 0, true}, {1, 1, true}};   // and our early one before both of its
    int count = from == ring->rank ? 3 : 2;
    memcpy(pairs, from == ring->rank ? same : from < ring->rank ? earlier : later, (size_t)count * sizeof *pairs);
    return count;
}

static Attention pair_attention(const Ring *ring, const Attention *how, int from, Pair pair) {
    Attention part = *how;
    part.seq = how->seq / CHUNKS;
    part.full = pair.full;
    part.first_key = mesh_chunk(ring->mesh, from, pair.key) * part.seq;
    part.doc_start = chunk_rows(how->doc_start, pair.query);
    return part;
}

// Of two buffers one behind the other: what a rank has in a step of the ring is in one, what it gets next in the other.
static Tensor ring_buffer(Tensor two, int step) {
    return chunk_rows(two, step % 2);
}

static CommTicket ring_pass(const Ring *ring, Tensor two, int step) {
    if (!ring->cp) return 0;
    int before = (ring->rank + ring->size - 1) % ring->size, after = (ring->rank + 1) % ring->size;
    return comm_exchange(ring->cp, ring_buffer(two, step + 1), before, ring_buffer(two, step), after);
}

static void ring_wait(const Ring *ring, CommTicket ticket) {
    if (ring->cp) comm_wait(ring->cp, ticket);
}

static int ring_source(const Ring *ring, int step) { // whose keys are here
    return (ring->rank + ring->size - step) % ring->size;
}

static void pack_keys(const Ring *ring, Tensor block, Tensor k, Tensor v) {
    ring->ops->convert(ring->ops, tensor_cols(block, 0, k.cols), k, false);
    ring->ops->convert(ring->ops, tensor_cols(block, k.cols, v.cols), v, false);
}

// ---- attention ------------------------------------------------------------------------------------------------------

// [batch * heads, seq], as the two chunks have it one behind the other.
static Tensor chunked_lse(Tensor lse) {
    return tensor_reshape(lse, lse.rows * CHUNKS, lse.cols / CHUNKS);
}

void seam_attention(Model *model, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, const Attention *how) {
    Ops *ops = model->ops;
    if (context_ranks(model) == 1) {
        ops->attention_forward(ops, out, lse, q, k, v, how);
        return;
    }
    Ring ring = ring_of(model);
    Tensor blocks = model_act(model, ACT_RING_KV, -1), sum = model_act(model, ACT_RING_SUM, -1);
    Tensor part_lse = model_act(model, ACT_RING_LSE, -1);
    lse = chunked_lse(lse);
    pack_keys(&ring, ring_buffer(blocks, 0), k, v);
    for (int step = 0; step < ring.size; step++) {
        CommTicket next = step + 1 < ring.size ? ring_pass(&ring, blocks, step) : 0;
        Tensor block = ring_buffer(blocks, step);
        Pair pairs[3];
        int from = ring_source(&ring, step), count = pairs_with(&ring, from, pairs);
        for (int i = 0; i < count; i++) {
            Tensor keys = chunk_rows(block, pairs[i].key), part = chunk_rows(out, pairs[i].query);
            Tensor whole = chunk_rows(sum, pairs[i].query), whole_lse = chunk_rows(lse, pairs[i].query);
            bool first = step == 0 && i < CHUNKS; // of these queries; the parts pass through the place of the result
            Attention pair = pair_attention(&ring, how, from, pairs[i]);
            ops->attention_forward(ops, part, first ? whole_lse : part_lse, chunk_rows(q, pairs[i].query),
                                   tensor_cols(keys, 0, k.cols), tensor_cols(keys, k.cols, v.cols), &pair);
            if (first)
                ops->convert(ops, whole, part, false);
            else
                ops->attention_merge(ops, whole, whole_lse, part, part_lse);
        }
        ring_wait(&ring, next);
    }
    ops->convert(ops, out, sum, false);
}

typedef struct Gradients { // of queries, keys and values side by side in a row
    Tensor q, k, v;
} Gradients;

static Gradients chunk_gradients(const Gradients *of, int place) {
    return (Gradients){chunk_rows(of->q, place), chunk_rows(of->k, place), chunk_rows(of->v, place)};
}

// The two parts that stand in the places of the result join the sums of queries, and of keys and values.
static void add_queries(const Ring *ring, Tensor sum, const Gradients *result, const Pair *pairs, int count,
                        bool first) {
    for (int i = 0; i < count; i++)
        ring->ops->convert(ring->ops, chunk_rows(sum, pairs[i].query), chunk_rows(result->q, i), !first);
}

static void add_keys(const Ring *ring, Tensor block, const Gradients *result, const Pair *pairs, int count,
                     bool first) {
    for (int i = 0; i < count; i++) {
        Tensor keys = chunk_rows(block, pairs[i].key);
        Gradients part = chunk_gradients(result, i);
        ring->ops->convert(ring->ops, tensor_cols(keys, 0, part.k.cols), part.k, !first);
        ring->ops->convert(ring->ops, tensor_cols(keys, part.k.cols, part.v.cols), part.v, !first);
    }
}

static void ring_backward(Model *model, const Gradients *result, Tensor dout, Tensor out, Tensor lse, Tensor q,
                          Tensor k, Tensor v, const Attention *how) {
    Ring ring = ring_of(model);
    Ops *ops = model->ops;
    Tensor blocks = model_act(model, ACT_RING_KV, -1), sums = model_act(model, ACT_RING_DKV, -1);
    Tensor dq_sum = model_act(model, ACT_RING_SUM, -1);
    CommTicket arriving = 0; // the sums that go with the keys of this step
    lse = chunked_lse(lse);
    pack_keys(&ring, ring_buffer(blocks, 0), k, v);
    for (int step = 0; step < ring.size; step++) {
        CommTicket next = step + 1 < ring.size ? ring_pass(&ring, blocks, step) : 0;
        Tensor block = ring_buffer(blocks, step), sum = ring_buffer(sums, step);
        Pair pairs[3];
        int from = ring_source(&ring, step), count = pairs_with(&ring, from, pairs);
        for (int done = 0, some; done < count; done += some) {
            some = count - done < CHUNKS ? count - done : CHUNKS;
            for (int i = 0; i < some; i++) {
                Pair pair = pairs[done + i];
                Tensor keys = chunk_rows(block, pair.key);
                Gradients part = chunk_gradients(result, i);
                Attention attention = pair_attention(&ring, how, from, pair);
                ops->attention_backward(ops, part.q, part.k, part.v, chunk_rows(dout, pair.query),
                                        chunk_rows(out, pair.query), chunk_rows(lse, pair.query),
                                        chunk_rows(q, pair.query), tensor_cols(keys, 0, k.cols),
                                        tensor_cols(keys, k.cols, v.cols), &attention, NULL);
            }
            bool first = step == 0 && done == 0;
            add_queries(&ring, dq_sum, result, pairs + done, some, first);
            if (done == 0) ring_wait(&ring, arriving);
            add_keys(&ring, sum, result, pairs + done, some, first);
        }
        arriving = ring_pass(&ring, sums, step);
        ring_wait(&ring, next);
    }
    ring_wait(&ring, arriving); // this rank's own
    Tensor own = ring_buffer(sums, ring.size);
    ops->convert(ops, result->q, dq_sum, false);
    ops->convert(ops, result->k, tensor_cols(own, 0, k.cols), false);
    ops->convert(ops, result->v, tensor_cols(own, k.cols, v.cols), false);
}

void seam_attention_backward(Model *model, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v, const Attention *how, const Rope *rope) {
    Ops *ops = model->ops;
    if (context_ranks(model) == 1) {
        ops->attention_backward(ops, dq, dk, dv, dout, out, lse, q, k, v, how, rope);
        return;
    }
    ring_backward(model, &(Gradients){dq, dk, dv}, dout, out, lse, q, k, v, how);
    if (!rope) return;
    Tensor dqk = dq; // with dk behind it
    dqk.cols += dk.cols;
    seam_rope_backward(model, dqk, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, rope);
}
