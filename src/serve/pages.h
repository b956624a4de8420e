// The files of pages/, in the program (cmake/HearthPages.cmake makes the table).
#pragma once

#include <stddef.h>

typedef struct ServePage {
    const char *name; // "run.js"
    const unsigned char *data;
    size_t size;
} ServePage;

extern const ServePage serve_pages[];
extern const int serve_page_count;
