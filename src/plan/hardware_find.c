// Looking things up in the catalogue: by name, by what a driver calls a device, and what others reach on such a
// machine.
#include "base/text.h"
#include "plan/hardware.h"

#include <stdlib.h>
#include <string.h>

static Status find_by_name(const char *what, const char *name, const void *entries, int count, size_t size,
                           int *index) {
    const char **names = xmalloc((size_t)(count + 1) * sizeof *names);
    *index = -1;
    for (int i = 0; i < count; i++) {
        names[i] = (const char *)entries + (size_t)i * size;
        if (strcmp(names[i], name) == 0) *index = i;
    }
    int starting = 0, last = -1; // "h200" means "h200-sxm" as long as nothing else starts so
    for (int i = 0; i < count; i++)
        if (text_starts_with(names[i], name)) starting++, last = i;
    if (*index < 0 && starting == 1) *index = last;
    Status status = NULL;
    if (*index < 0) {
        TextBuffer list = {0};
        for (int i = 0; i < count; i++)
            text_buffer_format(&list, "%s%s", i ? ", " : "", names[i]);
        const char *nearest = text_nearest(name, names, (size_t)count);
        status = status_usage("the hardware catalogue has no %s \"%s\"", what, name);
        status = nearest ? status_hint(status, "did you mean %s? There is: %s", nearest, list.data)
                         : status_hint(status, "there is: %s; a file given with --hardware can add more",
                                       count ? list.data : "none");
        text_buffer_free(&list);
    }
    free(names);
    return status;
}

Status hardware_find_gpu(const Hardware *hardware, const char *name, const HardwareGpu **gpu) {
    int index;
    TRY(find_by_name("gpu", name, hardware->gpus, hardware->gpu_count, sizeof **gpu, &index));
    *gpu = &hardware->gpus[index];
    return NULL;
}

Status hardware_find_cpu(const Hardware *hardware, const char *device, const HardwareGpu **gpu) {
    for (int i = 0; i < hardware->gpu_count; i++) {
        *gpu = &hardware->gpus[i];
        if (strcmp((*gpu)->name, device) == 0) return NULL;
    }
    return hardware_find_gpu(hardware, "cpu", gpu);
}

bool hardware_names_cpu(const char *device) {
    return text_starts_with(device, "cpu");
}

Status hardware_find_node(const Hardware *hardware, const char *name, const HardwareNode **node) {
    int index;
    TRY(find_by_name("node", name, hardware->nodes, hardware->node_count, sizeof **node, &index));
    *node = &hardware->nodes[index];
    return NULL;
}

Status hardware_find_cluster(const Hardware *hardware, const char *name, const HardwareCluster **cluster) {
    int index;
    TRY(find_by_name("cluster", name, hardware->clusters, hardware->cluster_count, sizeof **cluster, &index));
    *cluster = &hardware->clusters[index];
    return NULL;
}

Status hardware_find_software(const Hardware *hardware, const char *name, const HardwareSoftware **software) {
    int index;
    TRY(find_by_name("software", name, hardware->software, hardware->software_count, sizeof **software, &index));
    *software = &hardware->software[index];
    return NULL;
}

// The device's name without "NVIDIA " is a prefix of the title's, or the other way round: "NVIDIA H200" is
// "NVIDIA H200 SXM", "NVIDIA GeForce RTX 4090" is "NVIDIA GeForce RTX 4090". The longest title that agrees wins.
const HardwareGpu *hardware_match_device(const Hardware *hardware, const char *device) {
    const HardwareGpu *best = NULL;
    for (int i = 0; i < hardware->gpu_count; i++) {
        const HardwareGpu *gpu = &hardware->gpus[i];
        if (gpu->cpu || !(text_starts_with(gpu->title, device) || text_starts_with(device, gpu->title))) continue;
        if (!best || strlen(gpu->title) > strlen(best->title)) best = gpu;
    }
    return best;
}

static bool typical_of(const HardwareTypical *t, const HardwareGpu *gpu, int gpus, bool moe) {
    bool model = !t->model[0] || strcmp(t->model, moe ? "moe" : "dense") == 0;
    bool link = !t->link[0] || strcmp(t->link, hardware_link_class(gpu)) == 0;
    return model && link && gpus >= t->gpus_min && gpus <= t->gpus_max && t->high > 0;
}

const char *hardware_link_class(const HardwareGpu *gpu) {
    return gpu->cpu ? "cpu" : text_starts_with(gpu->link, "NVLink") ? "nvlink" : "pcie";
}

HardwareTypical hardware_typical(const Hardware *hardware, const HardwareGpu *gpu, int gpus, bool moe) {
    for (int i = hardware->typical_count - 1; i >= 0; i--) // later documents first
        if (typical_of(&hardware->typical[i], gpu, gpus, moe)) return hardware->typical[i];
    return (HardwareTypical){0};
}
