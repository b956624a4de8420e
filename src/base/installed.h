// Files that come with the program: its configurations and the hardware catalogue.
#pragma once

// "configs/hardware.toml" beside the program: in the source tree that it was built in, or where `make install` has put
// it. Malloc'd; NULL when there is none.
char *installed_file(const char *name);
