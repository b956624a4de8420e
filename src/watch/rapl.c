#include "watch/rapl.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct RaplZone {
    char *path;           // of energy_uj
    uint64_t last, range; // microjoules; at `range` it begins again
} RaplZone;

struct Rapl {
    RaplZone *zones;
    int count;
    TextBuffer names;
    uint64_t microjoules;
};

static Status number_read(const char *path, uint64_t *number) {
    errno = 0;
    FILE *file = fopen(path, "re");
    bool read = file && fscanf(file, "%" SCNu64, number) == 1, forbidden = errno == EACCES;
    Status status = read    ? NULL
                    : errno ? status_errno("cannot read the energy counter %s", path)
                            : status_runtime("the energy counter %s holds no number", path);
    if (file) fclose(file);
    return forbidden ? status_hint(status, "the system shows it to root alone; run as root, or `chmod a+r %s`", path)
                     : status;
}

static void name_read(const char *path, char name[32]) {
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%31s", name) != 1) name[0] = 0;
    if (file) fclose(file);
}

// Packages and their memory beside them. What else there is (cores, the whole platform) is inside of a package or has
// the packages inside.
static bool zone_counts(const char *zone, const char *name) {
    if (!text_starts_with(zone, "intel-rapl:")) return false;
    bool part = strchr(zone + strlen("intel-rapl:"), ':') != NULL;
    return part ? strcmp(name, "dram") == 0 : text_starts_with(name, "package");
}

static Status zone_add(Rapl *rapl, const char *folder, const char *zone) {
    char *path = path_join(folder, zone), *name_path = path_join(path, "name"), name[32];
    char *range_path = path_join(path, "max_energy_range_uj");
    RaplZone added = {.path = path_join(path, "energy_uj")};
    name_read(name_path, name);
    bool counts = zone_counts(zone, name);
    Status status = counts ? number_read(range_path, &added.range) : NULL;
    if (counts && !status) status = number_read(added.path, &added.last);
    if (counts && !status) {
        rapl->zones = xrealloc(rapl->zones, ((size_t)rapl->count + 1) * sizeof *rapl->zones);
        rapl->zones[rapl->count++] = added;
        text_buffer_format(&rapl->names, "%s%s", rapl->names.length ? ", " : "", name);
    } else {
        free(added.path);
    }
    free(path);
    free(name_path);
    free(range_path);
    return status;
}

Status rapl_open(Rapl **out, const char *folder) {
    if (!folder) folder = "/sys/class/powercap";
    Rapl *rapl = xcalloc(1, sizeof *rapl);
    char **names = NULL;
    size_t count = 0;
    if (file_is_directory(folder)) status_free(dir_list(&names, &count, folder));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++)
        status = zone_add(rapl, folder, names[i]);
    names_free(names, count);
    if (!status && !rapl->count)
        status = status_hint(
            status_runtime("this machine's CPU has no energy counter: %s has no intel-rapl zone of a package", folder),
            "Linux on an Intel or AMD CPU has one (module intel_rapl_msr), which virtual machines and "
            "containers seldom show; an NVIDIA GPU from Volta on has its own, with --device cuda");
    if (status) rapl_close(rapl), rapl = NULL;
    *out = rapl;
    return status;
}

void rapl_close(Rapl *rapl) {
    if (!rapl) return;
    for (int i = 0; i < rapl->count; i++)
        free(rapl->zones[i].path);
    free(rapl->zones);
    text_buffer_free(&rapl->names);
    free(rapl);
}

const char *rapl_zones(const Rapl *rapl) {
    return rapl->names.data;
}

Status rapl_read(Rapl *rapl, double *joules) {
    for (int i = 0; i < rapl->count; i++) {
        RaplZone *zone = &rapl->zones[i];
        uint64_t now;
        TRY(number_read(zone->path, &now));
        rapl->microjoules += now >= zone->last ? now - zone->last : now + zone->range - zone->last;
        zone->last = now;
    }
    *joules = (double)rapl->microjoules / 1e6;
    return NULL;
}
