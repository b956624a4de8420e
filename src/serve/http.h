// The server: hands requests of allowed clients to routes.h, until it is told to stop.
#pragma once

#include "base/status.h"
#include "serve/request.h"

typedef struct ServeOptions {
    const char *bind;  // an address, as numbers
    int port;          // 0: any that is free
    const char *token; // NULL: made where the address is not this machine's own; else none is asked for
} ServeOptions;

// Prints where to look, and returns after SIGINT or SIGTERM. A runtime error without libmicrohttpd.
Status serve_run(ServeSite *site, const ServeOptions *options);
