#include "crash.h"

#include "base/io.h"
#include "faults.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

// ---- a file system in memory ---------------------------------------------------------------------------------------

typedef enum Content { // how a file comes back that was not synced
    CONTENT_WRITTEN,
    CONTENT_SYNCED,
    CONTENT_HALF,
    CONTENT_ZEROS,
    CONTENT_LAST_WRITE,
    CONTENTS,
} Content;

static const char *const content_names[] = {"all data", "synced data only", "half of the data", "zeros",
                                            "zeros and the last write"};

typedef struct Node {
    bool directory;
    char *data, *synced;
    size_t size, synced_size;
    size_t last_offset, last_size; // of the write made last
    uint64_t hash[CONTENTS];
    bool hashed[CONTENTS];
} Node;

typedef struct Change {  // of one name
    int directory, node; // node -1: the name goes
    char name[128];
} Change;

typedef struct NameCall {
    Change changes[2];
    int count; // the last one is in the directory whose sync makes it lasting
    bool lasting;
} NameCall;

typedef struct Entries {
    Change *items;
    int count, capacity;
} Entries;

typedef struct Disk {
    Node *nodes; // [0]: the root
    int node_count, node_capacity;
    Entries base; // names that no crash can take back
    NameCall *calls;
    int call_count, call_capacity;
} Disk;

typedef struct Recorded {
    IoKind kind;
    char *path, *to; // below the root, "" is the root itself
    int flags;
    char *data;
    size_t size, offset;
} Recorded;

struct Crash {
    char *root;
    Disk disk;
    Recorded *calls;
    int count, capacity;
    uint64_t *seen; // hashes of the states that were checked
    int seen_count, seen_capacity;
};

#define GROW(array, count, capacity)                                     \
    do {                                                                 \
        if ((count) == (capacity)) {                                     \
            capacity = (capacity) ? (capacity)*2 : 64;                   \
            array = xrealloc(array, (size_t)(capacity) * sizeof *array); \
        }                                                                \
    } while (0)

static int node_new(Disk *disk, bool directory) {
    GROW(disk->nodes, disk->node_count, disk->node_capacity);
    disk->nodes[disk->node_count] = (Node){.directory = directory};
    return disk->node_count++;
}

static void entries_set(Entries *entries, const Change *change) {
    for (int i = 0; i < entries->count; i++) {
        Change *item = &entries->items[i];
        if (item->directory != change->directory || strcmp(item->name, change->name) != 0) continue;
        if (change->node < 0)
            *item = entries->items[--entries->count];
        else
            item->node = change->node;
        return;
    }
    if (change->node < 0) return;
    GROW(entries->items, entries->count, entries->capacity);
    entries->items[entries->count++] = *change;
}

static void entries_apply(Entries *entries, const NameCall *call) {
    for (int i = 0; i < call->count; i++)
        entries_set(entries, &call->changes[i]);
}

// The names as they are when of the calls that a crash may take back only those stay that `stays` says.
static Entries entries_after(const Disk *disk, bool (*stays)(int index, int chosen), int chosen) {
    Entries entries = {xmalloc(((size_t)disk->base.count + 1) * sizeof *entries.items), disk->base.count,
                       disk->base.count + 1};
    if (disk->base.count) memcpy(entries.items, disk->base.items, (size_t)disk->base.count * sizeof *entries.items);
    for (int i = 0; i < disk->call_count; i++)
        if (disk->calls[i].lasting || stays(i, chosen)) entries_apply(&entries, &disk->calls[i]);
    return entries;
}

static bool all_stay(int index, int chosen) {
    return (void)index, (void)chosen, true;
}

static bool none_stays(int index, int chosen) {
    return (void)index, (void)chosen, false;
}

static bool one_stays(int index, int chosen) {
    return index == chosen;
}

static bool one_goes(int index, int chosen) {
    return index != chosen;
}

static int entries_find(const Entries *entries, int directory, const char *name) {
    for (int i = 0; i < entries->count; i++)
        if (entries->items[i].directory == directory && strcmp(entries->items[i].name, name) == 0)
            return entries->items[i].node;
    return -1;
}

// The directory a path is in, and its last name; -1 when there is no such directory.
static int path_find(const Entries *entries, const char *path, char name[128], int *node) {
    int directory = 0;
    for (;;) {
        size_t length = strcspn(path, "/");
        assert_true(length < 128);
        memcpy(name, path, length);
        name[length] = 0;
        *node = length ? entries_find(entries, directory, name) : directory;
        path += length;
        while (*path == '/')
            path++;
        if (!*path) return directory;
        if (*node < 0) return -1;
        directory = *node;
    }
}

// ---- what a call does ----------------------------------------------------------------------------------------------

static void names_change(Disk *disk, NameCall call) {
    GROW(disk->calls, disk->call_count, disk->call_capacity);
    disk->calls[disk->call_count++] = call;
}

static Change change_of(int directory, const char *name, int node) {
    Change change = {.directory = directory, .node = node};
    snprintf(change.name, sizeof change.name, "%s", name);
    return change;
}

static void node_touched(Node *node) {
    memset(node->hashed, 0, sizeof node->hashed);
}

static void node_write(Node *node, const char *data, size_t size, size_t offset) {
    if (offset + size > node->size) {
        node->data = xrealloc(node->data, offset + size);
        if (offset > node->size) memset(node->data + node->size, 0, offset - node->size);
        node->size = offset + size;
    }
    memcpy(node->data + offset, data, size);
    node->last_offset = offset;
    node->last_size = size;
    node_touched(node);
}

static void node_truncate(Node *node, size_t size) {
    if (size > node->size) {
        node->data = xrealloc(node->data, size);
        memset(node->data + node->size, 0, size - node->size);
    }
    node->size = size;
    node_touched(node);
}

static void node_sync(Node *node) {
    free(node->synced);
    node->synced = xmalloc(node->size + 1);
    if (node->size) memcpy(node->synced, node->data, node->size);
    node->synced_size = node->size;
    node_touched(node);
}

static void directory_sync(Disk *disk, int directory) {
    for (int i = 0; i < disk->call_count; i++) {
        NameCall *call = &disk->calls[i];
        if (call->changes[call->count - 1].directory == directory) call->lasting = true;
    }
    int first = 0;
    while (first < disk->call_count && disk->calls[first].lasting)
        entries_apply(&disk->base, &disk->calls[first++]);
    disk->call_count -= first;
    memmove(disk->calls, disk->calls + first, (size_t)disk->call_count * sizeof *disk->calls);
}

static void disk_call(Disk *disk, const Recorded *call) {
    Entries now = entries_after(disk, all_stay, 0);
    char name[128], to_name[128];
    int node, to_node, directory = path_find(&now, call->path, name, &node);
    int to = call->to ? path_find(&now, call->to, to_name, &to_node) : -1;
    free(now.items);
    if (directory < 0) return; // it fails for the program too
    switch (call->kind) {
    case IO_OPEN:
        if (node < 0) {
            node = node_new(disk, false);
            names_change(disk, (NameCall){{change_of(directory, name, node)}, 1, false});
        } else if (call->flags & O_TRUNC) {
            disk->nodes[node].size = 0;
            node_touched(&disk->nodes[node]);
        }
        break;
    case IO_MKDIR:
        if (node >= 0) break;
        node = node_new(disk, true);
        names_change(disk, (NameCall){{change_of(directory, name, node)}, 1, false});
        break;
    case IO_UNLINK:
    case IO_RMDIR:
        if (node >= 0) names_change(disk, (NameCall){{change_of(directory, name, -1)}, 1, false});
        break;
    case IO_RENAME:
        if (node >= 0 && to >= 0)
            names_change(disk, (NameCall){{change_of(directory, name, -1), change_of(to, to_name, node)}, 2, false});
        break;
    case IO_WRITE:
        if (node >= 0) node_write(&disk->nodes[node], call->data, call->size, call->offset);
        break;
    case IO_TRUNCATE:
        if (node >= 0) node_truncate(&disk->nodes[node], call->size);
        break;
    case IO_SYNC:
        if (node < 0) break;
        if (disk->nodes[node].directory)
            directory_sync(disk, node);
        else
            node_sync(&disk->nodes[node]);
        break;
    default: break;
    }
}

// ---- recording -----------------------------------------------------------------------------------------------------

static pthread_mutex_t crash_lock = PTHREAD_MUTEX_INITIALIZER;

static char *below_root(const Crash *crash, const char *path) {
    size_t length = strlen(crash->root);
    if (strncmp(path, crash->root, length) != 0 || (path[length] && path[length] != '/')) return NULL;
    path += length;
    while (*path == '/')
        path++;
    return text_copy(path);
}

static size_t write_offset(int fd) {
    struct stat info;
    if (!(fcntl(fd, F_GETFL) & O_APPEND)) return (size_t)lseek(fd, 0, SEEK_CUR);
    assert_int_equal(fstat(fd, &info), 0);
    return (size_t)info.st_size;
}

static int record_call(Crash *crash, const IoCall *call) {
    int answer = call->kind == IO_SYNC ? IO_DONE : IO_GO;
    if (call->kind == IO_READ || call->kind == IO_MAP || call->kind == IO_CLOSE) return answer;
    if (call->kind == IO_OPEN && !(call->flags & (O_CREAT | O_TRUNC))) return answer;
    char path[4096];
    fault_path(call, path, sizeof path);
    Recorded recorded = {.kind = call->kind, .path = below_root(crash, path), .flags = call->flags, .size = call->size};
    if (!recorded.path) return answer;
    if (call->kind == IO_RENAME) recorded.to = below_root(crash, call->to);
    if (call->kind == IO_WRITE) {
        recorded.data = xmalloc(call->size + 1);
        memcpy(recorded.data, call->data, call->size);
        recorded.offset = call->offset < 0 ? write_offset(call->fd) : (size_t)call->offset;
    }
    GROW(crash->calls, crash->count, crash->capacity);
    crash->calls[crash->count++] = recorded;
    return answer;
}

static int crash_hook(void *context, IoCall *call) {
    pthread_mutex_lock(&crash_lock);
    int answer = record_call(context, call);
    pthread_mutex_unlock(&crash_lock);
    return answer;
}

static void disk_take(Disk *disk, int directory, const char *path) {
    char **names;
    size_t count;
    assert_ok(dir_list(&names, &count, path));
    for (size_t i = 0; i < count; i++) {
        char *child = path_join(path, names[i]);
        int node = node_new(disk, file_is_directory(child));
        Change change = change_of(directory, names[i], node);
        entries_set(&disk->base, &change);
        if (disk->nodes[node].directory) {
            disk_take(disk, node, child);
        } else {
            assert_ok(file_read(&disk->nodes[node].data, &disk->nodes[node].size, child));
            node_sync(&disk->nodes[node]);
        }
        free(child);
    }
    names_free(names, count);
}

static void disk_free(Disk *disk) {
    for (int i = 0; i < disk->node_count; i++) {
        free(disk->nodes[i].data);
        free(disk->nodes[i].synced);
    }
    free(disk->nodes);
    free(disk->base.items);
    free(disk->calls);
}

Crash *crash_record(const char *root) {
    Crash *crash = xcalloc(1, sizeof *crash);
    crash->root = realpath(root, NULL);
    assert_non_null(crash->root);
    node_new(&crash->disk, true);
    disk_take(&crash->disk, 0, crash->root);
    io_set_hook(crash_hook, crash);
    return crash;
}

// ---- states --------------------------------------------------------------------------------------------------------

// The file as it comes back, malloc'd.
static char *node_content(const Node *node, Content content, size_t *size) {
    *size = content == CONTENT_SYNCED ? node->synced_size : content == CONTENT_HALF ? node->size / 2 : node->size;
    char *data = xcalloc(*size + 1, 1);
    if (content == CONTENT_WRITTEN || content == CONTENT_HALF) {
        if (*size) memcpy(data, node->data, *size);
    } else {
        size_t kept = node->synced_size < *size ? node->synced_size : *size;
        if (kept) memcpy(data, node->synced, kept);
    }
    if (content == CONTENT_LAST_WRITE && node->last_offset + node->last_size <= *size && node->last_size)
        memcpy(data + node->last_offset, node->data + node->last_offset, node->last_size);
    return data;
}

static uint64_t node_hash(Node *node, Content content) {
    if (!node->hashed[content]) {
        size_t size;
        char *data = node_content(node, content, &size);
        node->hash[content] = XXH64(data, size, size);
        node->hashed[content] = true;
        free(data);
    }
    return node->hash[content];
}

// A file that is synced comes back as it is, whatever happens to the others.
static Content content_of(Node *node, Content content) {
    return node_hash(node, CONTENT_SYNCED) == node_hash(node, CONTENT_WRITTEN) ? CONTENT_WRITTEN : content;
}

static uint64_t state_hash(Disk *disk, const Entries *entries, int directory, Content content, int depth) {
    uint64_t sum = (uint64_t)depth + 1; // order does not matter
    assert_true(depth < 16);
    for (int i = 0; i < entries->count; i++) {
        const Change *item = &entries->items[i];
        if (item->directory != directory) continue;
        Node *node = &disk->nodes[item->node];
        uint64_t below = node->directory ? state_hash(disk, entries, item->node, content, depth + 1)
                                         : node_hash(node, content_of(node, content));
        sum += XXH64(item->name, strlen(item->name), below);
    }
    return sum;
}

static void plain_write(const char *path, const char *data, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), size);
    assert_int_equal(close(fd), 0);
}

static void state_make(Disk *disk, const Entries *entries, int directory, Content content, const char *path) {
    assert_int_equal(mkdir(path, 0755), 0);
    for (int i = 0; i < entries->count; i++) {
        const Change *item = &entries->items[i];
        if (item->directory != directory) continue;
        Node *node = &disk->nodes[item->node];
        char *child = path_join(path, item->name);
        if (node->directory) {
            state_make(disk, entries, item->node, content, child);
        } else {
            size_t size;
            char *data = node_content(node, content_of(node, content), &size);
            plain_write(child, data, size);
            free(data);
        }
        free(child);
    }
}

typedef struct Replay {
    Crash *crash;
    Disk *disk;
    const char *directory;
    CrashCheck *check;
    void *context;
    int states;
} Replay;

static bool state_is_new(Crash *crash, uint64_t hash) {
    for (int i = 0; i < crash->seen_count; i++)
        if (crash->seen[i] == hash) return false;
    GROW(crash->seen, crash->seen_count, crash->seen_capacity);
    crash->seen[crash->seen_count++] = hash;
    return true;
}

static void names_check(Replay *replay, int after, bool (*stays)(int, int), int chosen, const char *names) {
    Entries entries = entries_after(replay->disk, stays, chosen);
    for (int content = 0; content < CONTENTS; content++) {
        if (!state_is_new(replay->crash, state_hash(replay->disk, &entries, 0, content, 0))) continue;
        const Recorded *last = after ? &replay->crash->calls[after - 1] : NULL;
        char *when =
            text_format("after call %d of %d (%s %s%s%s), with %s and %s", after, replay->crash->count,
                        last ? fault_name(last->kind) : "none", last ? last->path : "", last && last->to ? " to " : "",
                        last && last->to ? last->to : "", names, content_names[content]);
        assert_ok(dir_remove(replay->directory));
        state_make(replay->disk, &entries, 0, content, replay->directory);
        replay->check(replay->context, replay->directory, when, after == replay->crash->count);
        replay->states++;
        free(when);
    }
    free(entries.items);
}

static void moment_check(Replay *replay, int after) {
    names_check(replay, after, all_stay, 0, "all names");
    names_check(replay, after, none_stays, 0, "synced names only");
    for (int i = 0; i < replay->disk->call_count; i++) {
        if (replay->disk->calls[i].lasting) continue;
        const NameCall *call = &replay->disk->calls[i];
        const char *name = call->changes[call->count - 1].name;
        char *one = text_format("%s alone of the unsynced names", name), *rest = text_format("all names but %s", name);
        names_check(replay, after, one_stays, i, one);
        names_check(replay, after, one_goes, i, rest);
        free(one);
        free(rest);
    }
}

static Disk disk_copy(const Disk *from) { // of one that no call has changed
    Disk disk = {0};
    for (int i = 0; i < from->node_count; i++) {
        int index = node_new(&disk, from->nodes[i].directory);
        Node *node = &disk.nodes[index];
        if (node->directory) continue;
        node_write(node, from->nodes[i].data, from->nodes[i].size, 0);
        node_sync(node);
    }
    for (int i = 0; i < from->base.count; i++)
        entries_set(&disk.base, &from->base.items[i]);
    return disk;
}

void crash_stop(Crash *crash) {
    io_set_hook(NULL, NULL);
    Disk disk = disk_copy(&crash->disk), there = {0};
    for (int i = 0; i < crash->count; i++)
        disk_call(&disk, &crash->calls[i]);
    node_new(&there, true);
    disk_take(&there, 0, crash->root);
    Entries recorded = entries_after(&disk, all_stay, 0);
    if (state_hash(&disk, &recorded, 0, CONTENT_WRITTEN, 0) != state_hash(&there, &there.base, 0, CONTENT_WRITTEN, 0))
        fail_msg("the %d calls that were recorded do not lead to what is in %s", crash->count, crash->root);
    free(recorded.items);
    disk_free(&disk);
    disk_free(&there);
}

int crash_replay(Crash *crash, const char *directory, CrashCheck *check, void *context) {
    Disk disk = disk_copy(&crash->disk);
    Replay replay = {crash, &disk, directory, check, context, 0};
    crash->seen_count = 0;
    moment_check(&replay, 0);
    for (int i = 0; i < crash->count; i++) {
        disk_call(&disk, &crash->calls[i]);
        if (i + 1 == crash->count) crash->seen_count = 0; // a state from before is another thing at the end
        moment_check(&replay, i + 1);
    }
    disk_free(&disk);
    return replay.states;
}

void crash_free(Crash *crash) {
    for (int i = 0; i < crash->count; i++) {
        free(crash->calls[i].path);
        free(crash->calls[i].to);
        free(crash->calls[i].data);
    }
    disk_free(&crash->disk);
    free(crash->calls);
    free(crash->seen);
    free(crash->root);
    free(crash);
}
