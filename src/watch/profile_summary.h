// What a profile comes to: the parts of a step, which add up to it, the ops that took the most beside their floors, and
// one sentence. Pure arithmetic, text and JSON.
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "watch/loss.h"

// The categories of ops (ops/ops.h), and where none of them ran:
typedef enum ProfilePart {
    PROFILE_COMMUNICATION = CATEGORY_COUNT, // that no computation hides
    PROFILE_DATA,                           // waiting for it
    PROFILE_GAPS,
    PROFILE_PART_COUNT,
} ProfilePart;
const char *profile_part_name(ProfilePart part); // "gemm", ..., "communication", "data", "gaps"

typedef struct ProfileSpan { // something of a part ran; spans may overlap
    ProfilePart part;
    double begin, end;
} ProfileSpan;

// Adds the seconds of [begin, end) to the parts, every moment to one of them: to computation before communication,
// copies and waits, and to gaps where nothing ran.
void profile_take_parts(const ProfileSpan *spans, int64_t count, double begin, double end,
                        double part[PROFILE_PART_COUNT]);

typedef struct ProfileOp { // all its calls in all layers and micro-batches of a step
    char name[STEP_OP_NAME];
    int category; // OpCategory
    StepPass pass;
    double calls, seconds;
    double floor; // at the rates that the planner has; 0: not known
} ProfileOp;

enum { PROFILE_OPS_SHOWN = 10, PROFILE_TEXT = 160 };

typedef struct ProfileSummary {
    int64_t first_step;
    int steps, ranks;
    char trace[PROFILE_TEXT]; // name of the file with the timeline
    // Means over the steps, of rank 0:
    double step_seconds;
    double part[PROFILE_PART_COUNT];
    double floor[CATEGORY_COUNT]; // sums of the ops'; 0: not known
    double recompute;             // seconds of ops that the backward pass runs again, within the parts
    double hidden;                // communication behind computation
    ProfileOp ops[PROFILE_OPS_SHOWN];
    int op_count;
    char waited_for[PROFILE_TEXT];     // the exchange that was waited for longest; "": none
    char no_graph[PROFILE_TEXT];       // why micro-steps are not replayed from a graph; "": they are
    char device_missing[PROFILE_TEXT]; // why there is no timeline of the GPU; "": there is, or it is a CPU
} ProfileSummary;

// The most expensive ones of all ops, and floors and recomputation from them. Sorts them.
void profile_take_ops(ProfileSummary *summary, ProfileOp *ops, int count);

LossTable profile_losses(const ProfileSummary *summary); // what loss_sentence speaks of
void profile_text(const ProfileSummary *summary, const LossFacts *facts, TextBuffer *out);

json_t *profile_json(const ProfileSummary *summary, const LossFacts *facts);
// Whatever the file holds: values that make no sense become 0 or "". False: it is no summary at all.
bool profile_read(ProfileSummary *summary, const json_t *root);

// ---- the rows of the table, for text and page -----------------------------------------------------------------------

typedef struct ProfileRow {
    const char *name;
    double seconds, floor; // floor 0: not known, or there is none
    bool inside;           // of the row above
} ProfileRow;
enum { PROFILE_ROWS = 12 };
bool profile_shows_floor(const ProfileSummary *summary, double seconds, double floor); // of a row that is worth it
int profile_rows(const ProfileSummary *summary, ProfileRow rows[PROFILE_ROWS]);        // without those of no time
