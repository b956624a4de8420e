// Writing and reading how a run stands.
#include "watch/run_state.h"

#include "base/file.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const run_state_names[] = {"running", "finished", "stopped", "failed"};

const char *run_state_name(RunState state) {
    return run_state_names[state];
}

Status run_state_write(const char *directory, RunState state, int64_t step, const char *message) {
    char *path = path_join(directory, "state.json");
    json_t *root = json_pack("{s:s,s:I,s:I,s:I}", "state", run_state_names[state], "step", (json_int_t)step, "process",
                             (json_int_t)getpid(), "time", (json_int_t)time(NULL));
    if (message) json_object_set_new(root, "message", json_text(message));
    Status status = json_write_file(root, path);
    json_decref(root);
    free(path);
    return status;
}

bool run_is_locked(const char *directory) {
    char *path = path_join(directory, ".lock");
    bool locked = file_is_locked(path);
    free(path);
    return locked;
}

json_t *run_file_json(const char *directory, const char *name) {
    char *path = path_join(directory, name);
    json_t *root = NULL;
    status_free(json_read_file(&root, path));
    free(path);
    return root;
}

RunState run_state_read(const char *directory, int64_t last_step, char **message) {
    *message = NULL;
    if (run_is_locked(directory)) return RUN_RUNNING;
    json_t *root = run_file_json(directory, "state.json"), *plan = run_file_json(directory, "plan.json");
    const char *name = json_string_value(json_object_get(root, "state"));
    const char *why = json_string_value(json_object_get(root, "message"));
    int64_t steps = json_integer_value(json_object_get(plan, "steps"));
    RunState state = steps > 0 && last_step >= steps ? RUN_FINISHED : RUN_STOPPED;
    for (RunState known = RUN_FINISHED; name && known <= RUN_FAILED; known++)
        if (strcmp(name, run_state_names[known]) == 0) state = known;
    if (name && strcmp(name, "running") == 0) { // and it no longer is
        state = RUN_FAILED;
        why = "its process ended without a word: killed, or the machine went down";
    }
    if (why) *message = text_copy(why);
    json_decref(root);
    json_decref(plan);
    return state;
}
