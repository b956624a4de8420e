// A call of an op as data, and tables that tell an observer of every call.
//
// Observing a table replaces its functions by ones that make a record, hand it to the observers and then call the
// table's own function. A recorder is a table with nothing behind it: the transformer run against one gives the list of
// its ops with their shapes, without memory or device. Planner, `bench ops` and the shape checks all work from such
// records.
#pragma once

#include "ops/ops.h"

enum { OP_RECORD_TENSORS = 13 };

typedef struct OpRecord {
    OpId op;
    Tensor tensor[OP_RECORD_TENSORS]; // in the order of the op's arguments
    bool flag;                        // accumulate, dsum_is_zero
    union {
        struct {
            Attention attention;
            Rope rope; // head_dim 0: none
        };
        MoeRouting routing;
        AdamwArgs adamw;
        struct {
            float number[2];
            int integer[2];
            int64_t tokens;
        };
    };
} OpRecord;

// Calls the op of a record: the function of `table` on `ops`, which usually are the same.
void op_run(const Ops *table, Ops *ops, const OpRecord *record);

// NULL, or the rule that the record's shapes break, as text. What is broken is a bug of the caller.
const char *op_check(const OpRecord *record);
void op_check_or_abort(const OpRecord *record); // says the op, the rule and all tensors

typedef struct OpCost {
    double flops; // of products: two per multiply-add; causal attention counts what is below the diagonal
    double bytes; // read and written once
} OpCost;
// expert_rows: rows of the experts' buffers that are in use (negative: all). added: how often, of the times that a
// weight gradient is overwritten in this record, it is read and added to instead (the other micro-batches of a step).
OpCost op_cost(const OpRecord *record, double expert_rows, double added);
// Instructions on vectors of floats that a CPU needs for the op beside its products, counted by lane. Of a fused op:
// none, ask its parts.
double op_vector_work(const OpRecord *record, double expert_rows);

// ---- observers ------------------------------------------------------------------------------------------------------

typedef void OpsObserverCall(void *context, const OpRecord *record); // before the op runs

void ops_observe(Ops *ops, OpsObserverCall *call, void *context); // until the table is destroyed, or:
void ops_stop_observing(Ops *ops);                                // all observers
// Told before and after. Ops that run as others tell of these in between.
void ops_observe_both(Ops *ops, OpsObserverCall *before, OpsObserverCall *after, void *context);
void ops_stop_observer(Ops *ops, void *context); // those with this context

// A table without device and memory that calls nothing but the observer. ops_stop_observing ends it.
void ops_recorder(Ops *ops, OpsObserverCall *call, void *context);

// In debug builds, every table checks its calls from when it is made; nothing in others.
void ops_check_calls(Ops *ops);
