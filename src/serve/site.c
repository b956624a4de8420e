#include "serve/site.h"

#include "base/file.h"
#include "base/text.h"

#include <stdlib.h>

struct ServeSite {
    char *folder;
};

Status serve_site_open(ServeSite **site, const char *folder) {
    if (!file_is_directory(folder))
        return status_hint(status_usage("there is no folder %s", folder),
                           "hearth serve FOLDER shows the runs of another; train.runs says where runs go");
    *site = xcalloc(1, sizeof **site);
    (*site)->folder = text_copy(folder);
    return NULL;
}

void serve_site_close(ServeSite *site) {
    if (!site) return;
    free(site->folder);
    free(site);
}
