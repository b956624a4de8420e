// Reading the catalogue: each kind of table is a list of fields, so that checks, units and messages are written once.
#include "plan/hardware.h"

#include "base/text.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum FieldKind { FIELD_NUMBER, FIELD_TEXT, FIELD_BOOL, FIELD_TABLE } FieldKind;

typedef struct Field {
    const char *key;
    FieldKind kind;
    size_t offset; // in the struct; of FIELD_TABLE: not used, the caller reads it
    double scale;  // to base units
    double min, max;
} Field;

#define GB    1e9
#define TERA  1e12
#define GIB   1073741824.0
#define MICRO 1e-6
#define HOUR  3600.0
#define NUMBER(type, key, member, scale, min, max) \
    { key, FIELD_NUMBER, offsetof(type, member), scale, min, max }
#define TEXT(type, key, member) \
    { key, FIELD_TEXT, offsetof(type, member), 0, 0, sizeof(((type *)0)->member) }

static const Field efficiency_fields[] = {
    NUMBER(HardwareEfficiency, "gemm", gemm, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "gemm_half", gemm_half, 1, 0, 1e5),
    NUMBER(HardwareEfficiency, "gemm_bf16", gemm_bf16, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "grouped", grouped, 1, 1e-6, 2),
    NUMBER(HardwareEfficiency, "attention_forward_64", attention_forward_64, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "attention_forward_128", attention_forward_128, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "attention_backward_64", attention_backward_64, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "attention_backward_128", attention_backward_128, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "attention_forward_half", attention_forward_half, 1, 0, 1e6),
    NUMBER(HardwareEfficiency, "attention_backward_half", attention_backward_half, 1, 0, 1e6),
    NUMBER(HardwareEfficiency, "memory", memory, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "elementwise", elementwise, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "scattered", scattered, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "link", link, 1, 1e-6, 1),
    NUMBER(HardwareEfficiency, "swiglu_hidden", swiglu_hidden, 1, 0, 1),
    NUMBER(HardwareEfficiency, "swiglu_fp8_hidden", swiglu_fp8_hidden, 1, 0, 1),
    NUMBER(HardwareEfficiency, "rope_hidden", rope_hidden, 1, 0, 1),
    NUMBER(HardwareEfficiency, "sustained", sustained, 1, 0.1, 1),
    NUMBER(HardwareEfficiency, "sustained_fp8", sustained_fp8, 1, 0.1, 1),
    NUMBER(HardwareEfficiency, "launch_gap_us", launch_gap, MICRO, 0, 1e6),
};

static const Field gpu_fields[] = {
    TEXT(HardwareGpu, "title", title),
    TEXT(HardwareGpu, "link", link),
    {"cpu", FIELD_BOOL, offsetof(HardwareGpu, cpu), 0, 0, 0},
    NUMBER(HardwareGpu, "processors", processors, 1, 0, 1e6),
    NUMBER(HardwareGpu, "fp32_tflops", peak[HARDWARE_FP32], TERA, 1e-6, 1e6),
    NUMBER(HardwareGpu, "tf32_tflops", peak[HARDWARE_TF32], TERA, 0, 1e6),
    NUMBER(HardwareGpu, "bf16_tflops", peak[HARDWARE_BF16], TERA, 0, 1e6),
    NUMBER(HardwareGpu, "fp16_tflops", peak[HARDWARE_FP16], TERA, 0, 1e6),
    NUMBER(HardwareGpu, "fp8_tflops", peak[HARDWARE_FP8], TERA, 0, 1e6),
    NUMBER(HardwareGpu, "memory_gib", memory, GIB, 1e-3, 1e7),
    NUMBER(HardwareGpu, "memory_GBps", bandwidth, GB, 1e-3, 1e7),
    NUMBER(HardwareGpu, "link_GBps", link_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareGpu, "link_latency_us", link_latency, MICRO, 0, 1e6),
    NUMBER(HardwareGpu, "nic_GBps", nic_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareGpu, "nic_latency_us", nic_latency, MICRO, 0, 1e6),
    NUMBER(HardwareGpu, "host_GBps", host_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareGpu, "watts", watts, 1, 0, 1e6),
    NUMBER(HardwareGpu, "usd_per_hour", usd_per_hour, 1, 0, 1e6),
    {"efficiency", FIELD_TABLE, 0, 0, 0, 0},
    {"gemm", FIELD_TABLE, 0, 0, 0, 0},
    {"attention", FIELD_TABLE, 0, 0, 0, 0},
};

static const Field node_fields[] = {
    TEXT(HardwareNode, "title", title),
    TEXT(HardwareNode, "gpu", gpu),
    NUMBER(HardwareNode, "gpus", gpus, 1, 1, 1e6),
    NUMBER(HardwareNode, "link_GBps", link_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareNode, "link_latency_us", link_latency, MICRO, 0, 1e6),
    NUMBER(HardwareNode, "nic_GBps", nic_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareNode, "nic_latency_us", nic_latency, MICRO, 0, 1e6),
    NUMBER(HardwareNode, "usd_per_gpu_hour", usd_per_hour, 1, 0, 1e6),
};

static const Field cluster_fields[] = {
    TEXT(HardwareCluster, "title", title),
    TEXT(HardwareCluster, "node", node),
    NUMBER(HardwareCluster, "nodes", nodes, 1, 1, 1e6),
};

static const Field software_fields[] = {
    TEXT(HardwareSoftware, "title", title),
    {"fused", FIELD_BOOL, offsetof(HardwareSoftware, fused), 0, 0, 0},
    NUMBER(HardwareSoftware, "compute_factor", compute_factor, 1, 0.01, 100),
    NUMBER(HardwareSoftware, "gemm_factor", gemm_factor, 1, 0.01, 100),
    NUMBER(HardwareSoftware, "memory_factor", memory_factor, 1, 0.01, 100),
    NUMBER(HardwareSoftware, "context_factor", context_factor, 1, 0.01, 100),
    NUMBER(HardwareSoftware, "eager_factor", eager_factor, 1, 1, 100),
    NUMBER(HardwareSoftware, "exchange_sync_us", exchange_sync, MICRO, 0, 1e6),
    NUMBER(HardwareSoftware, "exchange_efficiency", exchange_efficiency, 1, 1e-3, 1),
    NUMBER(HardwareSoftware, "imbalance", imbalance, 1, 0, 10),
    NUMBER(HardwareSoftware, "pressure", pressure, 1, 0, 1e6),
    NUMBER(HardwareSoftware, "state_bytes_per_parameter", state_bytes, 1, 0, 64),
    NUMBER(HardwareSoftware, "fixed_gib", fixed_bytes, GIB, 0, 1e3),
    NUMBER(HardwareSoftware, "fixed_tensor_parallel_gib", fixed_tensor_bytes, GIB, 0, 1e3),
    NUMBER(HardwareSoftware, "activation_bytes_none", activation_none, 1, 0, 1e4),
    NUMBER(HardwareSoftware, "activation_bytes_selective", activation_selective, 1, 0, 1e4),
    NUMBER(HardwareSoftware, "activation_bytes_full", activation_full, 1, 0, 1e4),
    NUMBER(HardwareSoftware, "activation_tp_replicated", tp_replicated, 1, 0, 1),
};

static const Field typical_fields[] = {
    TEXT(HardwareTypical, "title", title),
    TEXT(HardwareTypical, "model", model),
    TEXT(HardwareTypical, "link", link),
    TEXT(HardwareTypical, "source", source),
    NUMBER(HardwareTypical, "gpus_min", gpus_min, 1, 1, 1e9),
    NUMBER(HardwareTypical, "gpus_max", gpus_max, 1, 1, 1e9),
    NUMBER(HardwareTypical, "mfu_low", low, 1, 1e-6, 1),
    NUMBER(HardwareTypical, "mfu_high", high, 1, 1e-6, 1),
};

static const Field defaults_fields[] = {
    NUMBER(HardwareDefaults, "usd_per_kwh", usd_per_kwh, 1, 0, 100),
    NUMBER(HardwareDefaults, "pue", pue, 1, 1, 10),
    NUMBER(HardwareDefaults, "gpu_mtbf_hours", gpu_mtbf, HOUR, 1, 1e9),
    NUMBER(HardwareDefaults, "checkpoint_GBps", checkpoint_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareDefaults, "storage_GBps", storage_bandwidth, GB, 1e-3, 1e6),
    NUMBER(HardwareDefaults, "recovery_seconds", recovery, 1, 0, 1e7),
    NUMBER(HardwareDefaults, "usd_per_GB_month", usd_per_gb_month, 1, 0, 1e3),
    TEXT(HardwareDefaults, "usd_per_GB_month_source", usd_per_gb_month_source),
    NUMBER(HardwareDefaults, "fp8_speedup", fp8_speedup, 1, 0.1, 10),
    TEXT(HardwareDefaults, "fp8_speedup_source", fp8_speedup_source),
};

typedef struct GemmEntry { // as written
    char dtype[8], kind[16];
    double groups, m, n, k, flops;
} GemmEntry;
static const Field gemm_fields[] = {
    TEXT(GemmEntry, "dtype", dtype),
    TEXT(GemmEntry, "kind", kind),
    NUMBER(GemmEntry, "groups", groups, 1, 1, 1e6),
    NUMBER(GemmEntry, "m", m, 1, 1, 1e9),
    NUMBER(GemmEntry, "n", n, 1, 1, 1e9),
    NUMBER(GemmEntry, "k", k, 1, 1, 1e9),
    NUMBER(GemmEntry, "tflops", flops, TERA, 1e-6, 1e6),
};
typedef struct AttentionEntry {
    char dtype[8];
    double head_dim, seq, forward, backward;
} AttentionEntry;
static const Field attention_fields[] = {
    TEXT(AttentionEntry, "dtype", dtype),
    NUMBER(AttentionEntry, "head_dim", head_dim, 1, 1, 4096),
    NUMBER(AttentionEntry, "seq", seq, 1, 1, 1e9),
    NUMBER(AttentionEntry, "forward_tflops", forward, TERA, 1e-6, 1e6),
    NUMBER(AttentionEntry, "backward_tflops", backward, TERA, 1e-6, 1e6),
};

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static const char *const dtype_names[] = {"fp32", "tf32", "bf16", "fp16", "fp8"};

const char *hardware_dtype_name(HardwareDtype dtype) {
    return dtype_names[dtype];
}

void hardware_init(Hardware *hardware) {
    *hardware = (Hardware){
        .efficiency = {.gemm = 0.70,
                       .gemm_half = 64,
                       .grouped = 0.80,
                       .attention_forward_64 = 0.45,
                       .attention_forward_128 = 0.60,
                       .attention_backward_64 = 0.42,
                       .attention_backward_128 = 0.52,
                       .attention_forward_half = 380,
                       .attention_backward_half = 1200,
                       .memory = 0.80,
                       .elementwise = 0.90,
                       .scattered = 0.60,
                       .link = 0.78,
                       .sustained = 1,
                       .sustained_fp8 = 1,
                       .launch_gap = 2e-6},
        .defaults = {.usd_per_kwh = 0.10,
                     .pue = 1.3,
                     .gpu_mtbf = 50000 * HOUR,
                     .checkpoint_bandwidth = 2 * GB,
                     .storage_bandwidth = 100 * GB,
                     .recovery = 600,
                     .fp8_speedup = 1},
    };
}

void hardware_free(Hardware *hardware) {
    free(hardware->gpus);
    free(hardware->nodes);
    free(hardware->clusters);
    free(hardware->software);
    free(hardware->typical);
    *hardware = (Hardware){0};
}

// ---- fields ---------------------------------------------------------------------------------------------------------

typedef struct Reader {
    const char *file;
} Reader;

static Status reader_error(const Reader *reader, const TomlValue *at, Status status) {
    return status_at(status, reader->file, at->line, at->column);
}

static Status read_number(const Reader *reader, const char *table, const Field *field, const TomlValue *value,
                          double *out) {
    if (value->type != TOML_INTEGER && value->type != TOML_FLOAT)
        return reader_error(
            reader, value,
            status_usage("%s.%s must be a number, not %s", table, field->key, toml_type_name(value->type)));
    double number = value->type == TOML_INTEGER ? (double)value->integer : value->number;
    if (!(number >= field->min && number <= field->max))
        return reader_error(
            reader, value,
            status_usage("%s.%s = %g is out of range: %g to %g", table, field->key, number, field->min, field->max));
    *out = number * field->scale;
    return NULL;
}

static Status read_text(const Reader *reader, const char *table, const Field *field, const TomlValue *value,
                        char *out) {
    if (value->type != TOML_STRING)
        return reader_error(
            reader, value,
            status_usage("%s.%s must be a string, not %s", table, field->key, toml_type_name(value->type)));
    if (value->length >= (size_t)field->max)
        return reader_error(reader, value,
                            status_usage("%s.%s has more than %d characters", table, field->key, (int)field->max - 1));
    memcpy(out, value->text, value->length);
    out[value->length] = '\0';
    return NULL;
}

static Status read_fields(const Reader *reader, const char *table, const TomlValue *from, const Field *fields,
                          int count, void *to) {
    if (from->type != TOML_TABLE)
        return reader_error(reader, from,
                            status_usage("%s must be a table, not %s", table, toml_type_name(from->type)));
    for (size_t i = 0; i < from->length; i++) {
        const Field *field = NULL;
        for (int k = 0; k < count && !field; k++)
            if (strcmp(fields[k].key, from->keys[i]) == 0) field = &fields[k];
        if (!field) {
            const char *names[64];
            for (int k = 0; k < count; k++)
                names[k] = fields[k].key;
            const char *nearest = text_nearest(from->keys[i], names, (size_t)count);
            Status status = status_usage("%s has no key \"%s\"", table, from->keys[i]);
            if (nearest) status = status_hint(status, "did you mean %s?", nearest);
            return reader_error(reader, from->values[i], status);
        }
        char *place = (char *)to + field->offset;
        const TomlValue *value = from->values[i];
        if (field->kind == FIELD_NUMBER) {
            TRY(read_number(reader, table, field, value, (double *)(void *)place));
        } else if (field->kind == FIELD_TEXT) {
            TRY(read_text(reader, table, field, value, place));
        } else if (field->kind == FIELD_BOOL) {
            if (value->type != TOML_BOOLEAN)
                return reader_error(reader, value, status_usage("%s.%s must be true or false", table, field->key));
            *(bool *)place = value->boolean;
        }
    }
    return NULL;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

// Index of the entry called `name`, added (zeroed but for its name) when there is none; returns the array, which may
// have moved. Every entry starts with its name.
static void *catalogue_entry(void *entries, int *count, size_t size, const char *name, int *index, bool *added) {
    for (*index = 0; *index < *count; (*index)++)
        if (strcmp((char *)entries + (size_t)*index * size, name) == 0) {
            *added = false;
            return entries;
        }
    entries = xrealloc(entries, (size_t)(*count + 1) * size);
    char *place = (char *)entries + (size_t)(*count)++ * size;
    memset(place, 0, size);
    snprintf(place, HARDWARE_NAME_MAX, "%s", name);
    *added = true;
    return entries;
}

static Status read_dtype(const Reader *reader, const TomlValue *at, const char *what, const char *name,
                         HardwareDtype *dtype) {
    for (int i = 0; i < HARDWARE_DTYPE_COUNT; i++) {
        *dtype = (HardwareDtype)i;
        if (strcmp(name, dtype_names[i]) == 0) return NULL;
    }
    return reader_error(reader, at, status_usage("%s.dtype must be fp32, tf32, bf16, fp16 or fp8", what));
}

static Status read_gemms(const Reader *reader, const TomlValue *array, HardwareGpu *gpu) {
    if (array->type != TOML_ARRAY) return reader_error(reader, array, status_usage("gemm must be an array of tables"));
    gpu->gemm_count = 0; // measured points replace those of an earlier document
    for (size_t i = 0; i < array->length; i++) {
        GemmEntry point = {.dtype = "bf16", .kind = "dense"};
        const TomlValue *value = array->values[i];
        TRY(read_fields(reader, "gemm", value, gemm_fields, COUNT(gemm_fields), &point));
        HardwareDtype dtype;
        TRY(read_dtype(reader, value, "gemm", point.dtype, &dtype));
        bool grouped = strcmp(point.kind, "grouped") == 0;
        if (!grouped && strcmp(point.kind, "dense") != 0)
            return reader_error(reader, value, status_usage("gemm.kind must be dense or grouped"));
        if (!(point.m > 0 && point.n > 0 && point.k > 0 && point.flops > 0))
            return reader_error(reader, value, status_usage("a gemm point needs m, n, k and tflops"));
        if (!gpu->cpu && gpu->peak[dtype] > 0 && point.flops > gpu->peak[dtype]) // a CPU's peak is of one core
            return reader_error(
                reader, value,
                status_hint(status_usage("%g TFLOP/s is more than the dense %s peak of %g", point.flops / TERA,
                                         dtype_names[dtype], gpu->peak[dtype] / TERA),
                            "peaks with 2:4 sparsity are not used here; was the measurement right?"));
        if (gpu->gemm_count == HARDWARE_GEMMS_MAX)
            return reader_error(reader, value, status_usage("more than %d gemm points", HARDWARE_GEMMS_MAX));
        gpu->gemms[gpu->gemm_count++] = (HardwareGemm){.dtype = dtype,
                                                       .grouped = grouped,
                                                       .groups = grouped ? point.groups : 0,
                                                       .m = point.m,
                                                       .n = point.n,
                                                       .k = point.k,
                                                       .flops = point.flops,
                                                       .log_m = log2(point.m),
                                                       .log_n = log2(point.n),
                                                       .log_k = log2(point.k)};
    }
    return NULL;
}

static Status read_attentions(const Reader *reader, const TomlValue *array, HardwareGpu *gpu) {
    if (array->type != TOML_ARRAY)
        return reader_error(reader, array, status_usage("attention must be an array of tables"));
    gpu->attention_count = 0;
    for (size_t i = 0; i < array->length; i++) {
        AttentionEntry point = {.dtype = "bf16"};
        if (gpu->cpu) snprintf(point.dtype, sizeof point.dtype, "fp32");
        HardwareDtype dtype;
        const TomlValue *value = array->values[i];
        TRY(read_fields(reader, "attention", value, attention_fields, COUNT(attention_fields), &point));
        TRY(read_dtype(reader, value, "attention", point.dtype, &dtype));
        if (!(point.head_dim > 0 && point.seq > 0 && point.forward > 0 && point.backward > 0))
            return reader_error(
                reader, value, status_usage("an attention point needs head_dim, seq, forward_tflops, backward_tflops"));
        if (gpu->attention_count == HARDWARE_ATTENTIONS_MAX)
            return reader_error(reader, value, status_usage("more than %d attention points", HARDWARE_ATTENTIONS_MAX));
        gpu->attentions[gpu->attention_count++] =
            (HardwareAttention){dtype, point.head_dim, point.seq, point.forward, point.backward};
    }
    return NULL;
}

static Status read_gpu(const Reader *reader, Hardware *hardware, const char *name, const TomlValue *table) {
    int index;
    bool added;
    hardware->gpus =
        catalogue_entry(hardware->gpus, &hardware->gpu_count, sizeof *hardware->gpus, name, &index, &added);
    HardwareGpu *gpu = &hardware->gpus[index];
    if (added) {
        gpu->efficiency = hardware->efficiency;
        gpu->link_latency = 5e-6, gpu->nic_latency = 1e-5;
        gpu->link_bandwidth = 25 * GB, gpu->nic_bandwidth = 12.5 * GB, gpu->host_bandwidth = 25 * GB;
        snprintf(gpu->title, sizeof gpu->title, "%s", name);
        snprintf(gpu->link, sizeof gpu->link, "PCIe");
    }
    TRY(read_fields(reader, name, table, gpu_fields, COUNT(gpu_fields), gpu));
    const TomlValue *part = toml_get(table, "efficiency");
    if (part)
        TRY(read_fields(reader, "efficiency", part, efficiency_fields, COUNT(efficiency_fields), &gpu->efficiency));
    if ((part = toml_get(table, "gemm"))) TRY(read_gemms(reader, part, gpu));
    if ((part = toml_get(table, "attention"))) TRY(read_attentions(reader, part, gpu));
    if (added && !(gpu->peak[HARDWARE_FP32] > 0 && gpu->memory > 0 && gpu->bandwidth > 0))
        return reader_error(
            reader, table, status_usage("a new GPU needs at least fp32_tflops, memory_gib and memory_GBps (%s)", name));
    return NULL;
}

static Status read_node(const Reader *reader, Hardware *hardware, const char *name, const TomlValue *table) {
    int index;
    const HardwareGpu *gpu;
    bool added;
    hardware->nodes =
        catalogue_entry(hardware->nodes, &hardware->node_count, sizeof *hardware->nodes, name, &index, &added);
    HardwareNode *node = &hardware->nodes[index];
    if (added) node->gpus = 8;
    TRY(read_fields(reader, name, table, node_fields, COUNT(node_fields), node));
    return reader_error(reader, table, hardware_find_gpu(hardware, node->gpu, &gpu));
}

static Status read_cluster(const Reader *reader, Hardware *hardware, const char *name, const TomlValue *table) {
    int index;
    const HardwareNode *node;
    bool added;
    hardware->clusters =
        catalogue_entry(hardware->clusters, &hardware->cluster_count, sizeof *hardware->clusters, name, &index, &added);
    HardwareCluster *cluster = &hardware->clusters[index];
    if (added) cluster->nodes = 1;
    TRY(read_fields(reader, name, table, cluster_fields, COUNT(cluster_fields), cluster));
    return reader_error(reader, table, hardware_find_node(hardware, cluster->node, &node));
}

static Status read_software(const Reader *reader, Hardware *hardware, const char *name, const TomlValue *table) {
    int index;
    bool added;
    hardware->software = catalogue_entry(hardware->software, &hardware->software_count, sizeof *hardware->software,
                                         name, &index, &added);
    HardwareSoftware *software = &hardware->software[index];
    if (added) {
        software->compute_factor = software->gemm_factor = software->memory_factor = 1;
        software->context_factor = software->eager_factor = software->exchange_efficiency = 1;
        snprintf(software->title, sizeof software->title, "%s", name);
    }
    return read_fields(reader, name, table, software_fields, COUNT(software_fields), software);
}

static Status read_typical(const Reader *reader, Hardware *hardware, const char *name, const TomlValue *table) {
    int index;
    bool added;
    hardware->typical =
        catalogue_entry(hardware->typical, &hardware->typical_count, sizeof *hardware->typical, name, &index, &added);
    HardwareTypical *t = &hardware->typical[index];
    if (added) {
        t->gpus_min = 1, t->gpus_max = 1e9;
        snprintf(t->title, sizeof t->title, "%s", name);
    }
    TRY(read_fields(reader, name, table, typical_fields, COUNT(typical_fields), t));
    if (t->model[0] && strcmp(t->model, "dense") != 0 && strcmp(t->model, "moe") != 0)
        return reader_error(reader, table, status_usage("%s.model must be dense or moe", name));
    if (t->link[0] && strcmp(t->link, "nvlink") != 0 && strcmp(t->link, "pcie") != 0 && strcmp(t->link, "cpu") != 0)
        return reader_error(reader, table, status_usage("%s.link must be nvlink, pcie or cpu", name));
    if (!(t->low > 0 && t->low <= t->high && t->gpus_min <= t->gpus_max && t->source[0]))
        return reader_error(
            reader, table, status_usage("a typical MFU needs mfu_low, mfu_high not below it, and a source (%s)", name));
    return NULL;
}

// What `hearth bench` writes: which catalogue entry it refines, and what this machine does.
typedef struct MachineEntry {
    char gpu[HARDWARE_NAME_MAX], device[HARDWARE_TITLE_MAX], written[HARDWARE_NAME_MAX];
    double cores, method, copy, elementwise, launch_gap, swiglu_hidden, rope_hidden, host_bandwidth, memory;
    double link_bus, link_latency, nic_bus,
        nic_latency; // of `hearth bench comm`: bus bandwidth as collectives reach it
} MachineEntry;
static const Field machine_fields[] = {
    TEXT(MachineEntry, "gpu", gpu),
    TEXT(MachineEntry, "device", device),
    TEXT(MachineEntry, "written", written),
    NUMBER(MachineEntry, "cores", cores, 1, 1, 1e5),
    NUMBER(MachineEntry, "method", method, 1, 0, 1e5),
    NUMBER(MachineEntry, "copy_GBps", copy, GB, 1e-3, 1e6),
    NUMBER(MachineEntry, "elementwise_GBps", elementwise, GB, 1e-3, 1e6),
    NUMBER(MachineEntry, "launch_gap_us", launch_gap, MICRO, 0, 1e6),
    NUMBER(MachineEntry, "swiglu_hidden", swiglu_hidden, 1, 0, 1),
    NUMBER(MachineEntry, "rope_hidden", rope_hidden, 1, 0, 1),
    NUMBER(MachineEntry, "host_GBps", host_bandwidth, GB, 1e-3, 1e6),
    NUMBER(MachineEntry, "memory_gib", memory, GIB, 1e-3, 1e7),
    NUMBER(MachineEntry, "link_bus_GBps", link_bus, GB, 1e-6, 1e6),
    NUMBER(MachineEntry, "link_latency_us", link_latency, MICRO, 0, 1e6),
    NUMBER(MachineEntry, "nic_bus_GBps", nic_bus, GB, 1e-6, 1e6),
    NUMBER(MachineEntry, "nic_latency_us", nic_latency, MICRO, 0, 1e6),
    {"gemm", FIELD_TABLE, 0, 0, 0, 0},
    {"attention", FIELD_TABLE, 0, 0, 0, 0},
};

// Links are planned with a share of their bandwidth, and the measured figure is that share already.
static void set_links(HardwareGpu *gpu, const MachineEntry *machine) {
    double use = gpu->efficiency.link;
    if (machine->link_bus > 0) gpu->link_bandwidth = machine->link_bus / use;
    if (machine->link_latency >= 0) gpu->link_latency = machine->link_latency;
    if (machine->nic_bus > 0) gpu->nic_bandwidth = machine->nic_bus / use;
    if (machine->nic_latency >= 0) gpu->nic_latency = machine->nic_latency;
}

// A profile with nothing but links says nothing of the device.
static bool only_links(const TomlValue *table) {
    static const char *const others[] = {"gpu",          "device",        "written", "link_bus_GBps", "link_latency_us",
                                         "nic_bus_GBps", "nic_latency_us"};
    bool only = toml_get(table, "link_latency_us") || toml_get(table, "nic_latency_us");
    for (size_t i = 0; i < table->length; i++) {
        int k = 0;
        while (k < COUNT(others) && strcmp(table->keys[i], others[k]) != 0)
            k++;
        only &= k < COUNT(others);
    }
    return only;
}

static Status read_machine(const Reader *reader, Hardware *hardware, const TomlValue *root, const TomlValue *table) {
    MachineEntry machine = {
        .launch_gap = -1, .swiglu_hidden = -1, .rope_hidden = -1, .link_latency = -1, .nic_latency = -1};
    const HardwareGpu *found;
    TRY(read_fields(reader, "machine", table, machine_fields, COUNT(machine_fields), &machine));
    TRY(reader_error(reader, table, hardware_find_gpu(hardware, machine.gpu, &found)));
    HardwareGpu *gpu = &hardware->gpus[found - hardware->gpus];
    if (!only_links(table)) {
        gpu->measured = true;
        gpu->outdated = gpu->cpu && machine.method < HARDWARE_CPU_METHOD;
    }
    double copy = machine.copy > 0 ? machine.copy : machine.elementwise;
    if (copy > 0) { // more than the catalogue's figure means that the figure is too low
        if (copy > gpu->bandwidth) gpu->bandwidth = copy;
        gpu->efficiency.memory = copy / gpu->bandwidth;
        if (machine.elementwise > 0) gpu->efficiency.elementwise = machine.elementwise / copy;
    }
    if (gpu->cpu) gpu->cores = machine.cores;
    if (machine.launch_gap >= 0) gpu->efficiency.launch_gap = machine.launch_gap;
    if (machine.swiglu_hidden >= 0) gpu->efficiency.swiglu_hidden = machine.swiglu_hidden;
    if (machine.rope_hidden >= 0) gpu->efficiency.rope_hidden = machine.rope_hidden;
    if (machine.host_bandwidth > 0) gpu->host_bandwidth = machine.host_bandwidth;
    if (machine.memory > 0) gpu->memory = machine.memory;
    set_links(gpu, &machine);
    const TomlValue *part = toml_get(table, "gemm") ? toml_get(table, "gemm") : toml_get(root, "gemm");
    if (part) TRY(read_gemms(reader, part, gpu));
    part = toml_get(table, "attention") ? toml_get(table, "attention") : toml_get(root, "attention");
    if (part) TRY(read_attentions(reader, part, gpu));
    return NULL;
}

typedef Status (*EntryReader)(const Reader *, Hardware *, const char *, const TomlValue *);

static Status read_entries(const Reader *reader, Hardware *hardware, const TomlValue *root, const char *kind,
                           EntryReader read) {
    const TomlValue *tables = toml_get(root, kind);
    if (!tables) return NULL;
    if (tables->type != TOML_TABLE)
        return reader_error(reader, tables, status_usage("%s must hold tables: [%s.NAME]", kind, kind));
    for (size_t i = 0; i < tables->length; i++) {
        if (strlen(tables->keys[i]) >= HARDWARE_NAME_MAX)
            return reader_error(reader, tables->values[i],
                                status_usage("the name \"%s\" is too long", tables->keys[i]));
        TRY(read(reader, hardware, tables->keys[i], tables->values[i]));
    }
    return NULL;
}

Status hardware_merge(Hardware *hardware, const TomlValue *root, const char *file) {
    static const char *const known[] = {"efficiency", "defaults", "gpu",  "node",      "cluster",
                                        "software",   "machine",  "gemm", "attention", "typical"};
    const Reader reader = {file};
    for (size_t i = 0; i < root->length; i++) {
        int k = 0;
        while (k < COUNT(known) && strcmp(root->keys[i], known[k]) != 0)
            k++;
        if (k < COUNT(known)) continue;
        Status status = status_usage("a hardware file has no section \"%s\"", root->keys[i]);
        const char *nearest = text_nearest(root->keys[i], known, COUNT(known));
        if (nearest) status = status_hint(status, "did you mean [%s]?", nearest);
        return reader_error(&reader, root->values[i], status);
    }
    const TomlValue *part = toml_get(root, "efficiency");
    if (part)
        TRY(read_fields(&reader, "efficiency", part, efficiency_fields, COUNT(efficiency_fields),
                        &hardware->efficiency));
    if ((part = toml_get(root, "defaults")))
        TRY(read_fields(&reader, "defaults", part, defaults_fields, COUNT(defaults_fields), &hardware->defaults));
    TRY(read_entries(&reader, hardware, root, "gpu", read_gpu));
    TRY(read_entries(&reader, hardware, root, "node", read_node));
    TRY(read_entries(&reader, hardware, root, "cluster", read_cluster));
    TRY(read_entries(&reader, hardware, root, "software", read_software));
    TRY(read_entries(&reader, hardware, root, "typical", read_typical));
    part = toml_get(root, "machine");
    if (part) return read_machine(&reader, hardware, root, part);
    if ((part = toml_get(root, "gemm")) || (part = toml_get(root, "attention")))
        return reader_error(&reader, part,
                            status_usage("measured points need a [machine] that says which gpu they are of"));
    return NULL;
}
