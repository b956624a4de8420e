// The planner and the calculator as answers of the server.
#include "plan/calc.h"
#include "serve/planner_api.h"

static Status reply_with(ServeReply *reply, Status status, json_t *root) {
    if (!status) serve_reply_json(reply, root);
    return status;
}

Status planner_plan_answer(const ServeRequest *request, ServeReply *reply) {
    json_t *root = NULL;
    Status status = planner_plan(&root, request->parameters, request->parameter_count);
    return reply_with(reply, status, root);
}

Status planner_lists_answer(const ServeRequest *request, ServeReply *reply) {
    (void)request;
    json_t *root = NULL;
    Status status = planner_lists(&root);
    return reply_with(reply, status, root);
}

Status planner_calc_answer(const ServeRequest *request, ServeReply *reply) {
    json_t *root = NULL;
    Status status = planner_calc(&root, request->parameters, request->parameter_count);
    return reply_with(reply, status, root);
}

Status planner_quantities_answer(const ServeRequest *request, ServeReply *reply) {
    json_t *root = NULL;
    Status status = calc_list_json(&root, serve_parameter(request, "word"));
    return reply_with(reply, status, root);
}
