#include "base/build.h"

static const char *commit_of_build = "unknown";

const char *build_commit(void) {
    return commit_of_build;
}

void build_set_commit(const char *commit) {
    commit_of_build = commit;
}
