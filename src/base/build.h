// Which build this is. The program tells at its start; libraries and tests do not know.
#pragma once

// As `git describe --always --dirty` said when the program was built: a commit, with "-dirty" behind it when files had
// changed since; "unknown" without git.
const char *build_commit(void);
void build_set_commit(const char *commit); // a constant string
