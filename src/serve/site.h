// What is served: the runs of a folder.
#pragma once

#include "base/status.h"
#include "serve/request.h"

Status serve_site_open(ServeSite **site, const char *folder);
void serve_site_close(ServeSite *site); // NULL is fine
