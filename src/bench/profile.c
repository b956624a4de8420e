#include "bench/profile.h"

#include <stdlib.h>
#include <string.h>

static bool line_is_of_links(const char *line) {
    return text_starts_with(line, "link_") || text_starts_with(line, "nic_");
}

char *profile_lines(const char *text, bool links) {
    TextBuffer out = {0};
    text_buffer_add(&out, "", 0);
    while (*text) {
        size_t length = strcspn(text, "\n");
        length += text[length] == '\n';
        if (line_is_of_links(text) == links) text_buffer_add(&out, text, length);
        text += length;
    }
    return out.data;
}

char *profile_link_lines(const BenchLink *link, int ranks, bool between_hosts) {
    const char *name = between_hosts ? "nic" : "link";
    return text_format("%s_bus_GBps = %.4g # all-reduce of %d ranks, as `hearth bench comm` counts\n"
                       "%s_latency_us = %.4g # each step of a ring\n",
                       name, link->bus / 1e9, ranks, name, link->latency * 1e6);
}

bool profile_is_of(const char *text, const char *gpu) {
    char *line = text_format("gpu = \"%s\"", gpu);
    const char *any = strstr(text, "gpu = \"");
    bool is = !any || strncmp(any, line, strlen(line)) == 0;
    free(line);
    return is;
}
