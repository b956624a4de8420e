#include "data/prepare_dedup.h"

#include "base/file.h"
#include "base/io.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ENTRIES_DEFAULT ((size_t)12 << 20)
#define SLOTS_FIRST     ((size_t)1 << 16)
#define BLOOM_BITS      10 // a hash; with BLOOM_PROBES one lookup in a hundred reads the run in vain
#define BLOOM_PROBES    7
#define SEARCH_BLOCK    256 // hashes read at once from a run

typedef struct Run {
    char *path;
    int fd;
    uint64_t count;
    uint8_t *bloom;
    uint64_t bloom_bits;
} Run;

struct DedupSet {
    char *directory;
    DocumentHash *slots; // open addressing; {0, 0} is a free slot
    size_t slot_count, used, entries;
    Run *runs;
    size_t run_count;
};

DocumentHash document_hash(const char *text, size_t length, uint64_t seed) {
    XXH128_hash_t hash = XXH3_128bits_withSeed(text, length, seed);
    return (DocumentHash){hash.high64, hash.low64 ? hash.low64 : 1}; // never {0, 0}
}

int document_hash_compare(DocumentHash a, DocumentHash b) {
    if (a.high != b.high) return a.high < b.high ? -1 : 1;
    return a.low == b.low ? 0 : a.low < b.low ? -1 : 1;
}

static int hash_order(const void *a, const void *b) {
    return document_hash_compare(*(const DocumentHash *)a, *(const DocumentHash *)b);
}

DedupSet *dedup_new(const char *directory, size_t entries) {
    DedupSet *set = xcalloc(1, sizeof *set);
    set->directory = text_copy(directory);
    set->entries = entries ? entries : ENTRIES_DEFAULT;
    set->slot_count = SLOTS_FIRST;
    set->slots = xcalloc(set->slot_count, sizeof *set->slots);
    return set;
}

void dedup_free(DedupSet *set) {
    if (!set) return;
    for (size_t i = 0; i < set->run_count; i++) {
        if (set->runs[i].fd >= 0) io_close(set->runs[i].fd);
        io_unlink(set->runs[i].path);
        free(set->runs[i].path);
        free(set->runs[i].bloom);
    }
    free(set->runs);
    free(set->slots);
    free(set->directory);
    free(set);
}

// The slot that holds the hash, or the free one where it belongs. The hash is uniform, so its bits are the address.
static DocumentHash *slot_find(const DedupSet *set, DocumentHash hash) {
    size_t mask = set->slot_count - 1, at = hash.low & mask;
    while (set->slots[at].low && (set->slots[at].low != hash.low || set->slots[at].high != hash.high))
        at = (at + 1) & mask;
    return &set->slots[at];
}

static void slots_grow(DedupSet *set) {
    DedupSet old = *set;
    set->slot_count *= 2;
    set->slots = xcalloc(set->slot_count, sizeof *set->slots);
    for (size_t i = 0; i < old.slot_count; i++) {
        if (old.slots[i].low) *slot_find(set, old.slots[i]) = old.slots[i];
    }
    free(old.slots);
}

// --- runs -----------------------------------------------------------------------------------------------------------

static uint64_t bloom_bit(const Run *run, DocumentHash hash, unsigned probe) {
    return (hash.high + probe * (hash.low | 1)) % run->bloom_bits;
}

static bool bloom_has(const Run *run, DocumentHash hash) {
    for (unsigned i = 0; i < BLOOM_PROBES; i++) {
        uint64_t bit = bloom_bit(run, hash, i);
        if (!(run->bloom[bit >> 3] & 1 << (bit & 7))) return false;
    }
    return true;
}

Status bytes_read(int fd, void *data, size_t size, uint64_t offset, const char *path) {
    char *to = data;
    while (size > 0) {
        ssize_t n = io_read_at(fd, to, size, (int64_t)offset);
        if (n < 0) return status_errno("cannot read %s", path);
        if (n == 0) return status_runtime("%s became shorter while it was read", path);
        to += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return NULL;
}

// Hashes are uniform, so the place of one in a sorted run is known to within a few; a block around it is read.
static Status run_has(const Run *run, DocumentHash hash, bool *has) {
    *has = false;
    uint64_t low = 0, high = run->count;
    DocumentHash block[SEARCH_BLOCK];
    uint64_t guess = (uint64_t)(((unsigned __int128)hash.high * run->count) >> 64);
    while (low < high) {
        uint64_t start = guess > low + SEARCH_BLOCK / 2 ? guess - SEARCH_BLOCK / 2 : low;
        uint64_t count = high - start < SEARCH_BLOCK ? high - start : SEARCH_BLOCK;
        TRY(bytes_read(run->fd, block, count * sizeof *block, start * sizeof *block, run->path));
        if (document_hash_compare(hash, block[0]) < 0) {
            high = start;
            guess = low + (high - low) / 2;
        } else if (document_hash_compare(hash, block[count - 1]) > 0) {
            low = start + count;
            guess = low + (high - low) / 2;
        } else {
            *has = bsearch(&hash, block, count, sizeof *block, hash_order) != NULL;
            return NULL;
        }
    }
    return NULL;
}

static Status run_write(DedupSet *set) {
    size_t count = 0;
    for (size_t i = 0; i < set->slot_count; i++) {
        if (set->slots[i].low) set->slots[count++] = set->slots[i];
    }
    qsort(set->slots, count, sizeof *set->slots, hash_order);
    set->runs = xrealloc(set->runs, (set->run_count + 1) * sizeof *set->runs);
    Run *run = &set->runs[set->run_count];
    *run = (Run){.count = count, .bloom_bits = (uint64_t)count * BLOOM_BITS + 64};
    run->path = text_format("%s/dedup-%zu.run", set->directory, set->run_count);
    run->bloom = xcalloc(run->bloom_bits / 8 + 1, 1);
    run->fd = io_open(run->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    set->run_count++;
    if (run->fd < 0) return status_errno("cannot write %s", run->path);
    TRY(file_write_all(run->fd, set->slots, count * sizeof *set->slots, run->path));
    for (size_t i = 0; i < count; i++) {
        for (unsigned k = 0; k < BLOOM_PROBES; k++) {
            uint64_t bit = bloom_bit(run, set->slots[i], k);
            run->bloom[bit >> 3] |= (uint8_t)(1 << (bit & 7));
        }
    }
    memset(set->slots, 0, set->slot_count * sizeof *set->slots);
    set->used = 0;
    return NULL;
}

Status dedup_insert(DedupSet *set, DocumentHash hash, bool *added) {
    *added = false;
    DocumentHash *slot = slot_find(set, hash);
    if (slot->low) return NULL;
    for (size_t i = 0; i < set->run_count; i++) {
        bool has = false;
        if (bloom_has(&set->runs[i], hash)) TRY(run_has(&set->runs[i], hash, &has));
        if (has) return NULL;
    }
    *added = true;
    *slot = hash;
    set->used++;
    if (set->used >= set->entries) return run_write(set);
    if (set->used * 4 > set->slot_count * 3) slots_grow(set);
    return NULL;
}
