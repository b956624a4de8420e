// The summary of a profile as JSON, and back.
#include "watch/profile_summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *profile_json(const ProfileSummary *s, const LossFacts *facts) {
    json_t *parts = json_object(), *floors = json_object(), *ops = json_array();
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        json_object_set_new(parts, profile_part_name((ProfilePart)i), json_real(s->part[i]));
    for (int i = 0; i < CATEGORY_COUNT; i++)
        json_object_set_new(floors, profile_part_name((ProfilePart)i), json_real(s->floor[i]));
    for (int i = 0; i < s->op_count; i++) {
        const ProfileOp *op = &s->ops[i];
        json_array_append_new(ops,
                              json_pack("{s:s,s:s,s:s,s:f,s:f,s:f}", "name", op->name, "category",
                                        op_category_name((OpCategory)op->category), "pass", step_pass_name(op->pass),
                                        "calls", op->calls, "seconds", op->seconds, "floor_seconds", op->floor));
    }
    LossTable losses = profile_losses(s);
    char *sentence = loss_sentence(&losses, facts);
    json_t *root = json_pack("{s:I,s:i,s:i,s:s,s:f,s:o,s:o,s:f,s:f,s:o,s:s,s:b,s:s,s:s,s:s}", "first_step",
                             (json_int_t)s->first_step, "steps", s->steps, "ranks", s->ranks, "trace", s->trace,
                             "step_seconds", s->step_seconds, "parts", parts, "floors", floors, "recompute_seconds",
                             s->recompute, "hidden_communication_seconds", s->hidden, "ops", ops, "waited_for",
                             s->waited_for, "graph_recorded", s->no_graph[0] == '\0', "why_no_graph", s->no_graph,
                             "why_no_gpu_timeline", s->device_missing, "sentence", sentence);
    free(sentence);
    return root;
}

static double number_at(const json_t *object, const char *key) {
    double value = json_number_value(json_object_get(object, key));
    return isfinite(value) && value > 0 ? value : 0;
}

static void text_at(const json_t *object, const char *key, char *out, size_t size) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, size, "%s", text ? text : "");
}

static bool op_read(ProfileOp *op, const json_t *from) {
    char category[32], pass[32];
    *op = (ProfileOp){.category = -1,
                      .pass = STEP_ONCE,
                      .calls = number_at(from, "calls"),
                      .seconds = number_at(from, "seconds"),
                      .floor = number_at(from, "floor_seconds")};
    text_at(from, "name", op->name, sizeof op->name);
    text_at(from, "category", category, sizeof category);
    text_at(from, "pass", pass, sizeof pass);
    for (int i = 0; i < CATEGORY_COUNT; i++)
        if (strcmp(category, op_category_name((OpCategory)i)) == 0) op->category = i;
    for (int i = STEP_FORWARD; i <= STEP_ONCE; i++)
        if (strcmp(pass, step_pass_name((StepPass)i)) == 0) op->pass = (StepPass)i;
    return op->category >= 0 && op->name[0];
}

bool profile_read(ProfileSummary *s, const json_t *root) {
    const json_t *parts = json_object_get(root, "parts"), *floors = json_object_get(root, "floors");
    const json_t *ops = json_object_get(root, "ops");
    *s = (ProfileSummary){.first_step = json_integer_value(json_object_get(root, "first_step")),
                          .steps = (int)fmin(number_at(root, "steps"), 1e6),
                          .ranks = (int)fmin(number_at(root, "ranks"), 1e6),
                          .step_seconds = number_at(root, "step_seconds"),
                          .recompute = number_at(root, "recompute_seconds"),
                          .hidden = number_at(root, "hidden_communication_seconds")};
    text_at(root, "trace", s->trace, sizeof s->trace);
    text_at(root, "waited_for", s->waited_for, sizeof s->waited_for);
    text_at(root, "why_no_graph", s->no_graph, sizeof s->no_graph);
    text_at(root, "why_no_gpu_timeline", s->device_missing, sizeof s->device_missing);
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        s->part[i] = number_at(parts, profile_part_name((ProfilePart)i));
    for (int i = 0; i < CATEGORY_COUNT; i++)
        s->floor[i] = number_at(floors, profile_part_name((ProfilePart)i));
    for (size_t i = 0; i < json_array_size(ops) && s->op_count < PROFILE_OPS_SHOWN; i++)
        s->op_count += op_read(&s->ops[s->op_count], json_array_get(ops, i));
    return s->step_seconds > 0;
}
