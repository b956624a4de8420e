// Mutations that keep JSON what it is: one value of the tree changes, goes, comes or is exchanged, so that nearly every
// input gets past the parser. One in eight is left to the bytes. A target names the words that mean something to it.
#pragma once

#include "fuzz_files.h"

#include <jansson.h>

extern const char *const fuzz_words[]; // keys and values, ended by NULL

static uint64_t fuzz_random_state;
static inline uint32_t fuzz_random(uint32_t below) { // xorshift64*
    fuzz_random_state ^= fuzz_random_state >> 12;
    fuzz_random_state ^= fuzz_random_state << 25;
    fuzz_random_state ^= fuzz_random_state >> 27;
    return (uint32_t)((fuzz_random_state * 0x2545F4914F6CDD1Du) >> 33) % below;
}

typedef struct FuzzSlot { // a place in the tree: a member of an object, an element of an array
    json_t *parent;
    const char *key;
    size_t index;
} FuzzSlot;
enum { FUZZ_SLOTS_MAX = 2048 };

static inline void fuzz_slots(json_t *value, FuzzSlot *slots, int *count, int depth) {
    const char *key;
    json_t *member;
    size_t index;
    if (depth > 64) return;
    if (json_is_object(value)) {
        json_object_foreach(value, key, member) {
            if (*count < FUZZ_SLOTS_MAX) slots[(*count)++] = (FuzzSlot){value, key, 0};
            fuzz_slots(member, slots, count, depth + 1);
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, index, member) {
            if (*count < FUZZ_SLOTS_MAX) slots[(*count)++] = (FuzzSlot){value, NULL, index};
            fuzz_slots(member, slots, count, depth + 1);
        }
    }
}

static inline json_t *fuzz_slot_value(const FuzzSlot *slot) {
    return slot->key ? json_object_get(slot->parent, slot->key) : json_array_get(slot->parent, slot->index);
}

static inline void fuzz_slot_set(const FuzzSlot *slot, json_t *value) { // takes it over
    if (slot->key)
        json_object_set_new_nocheck(slot->parent, slot->key, value);
    else
        json_array_set_new(slot->parent, slot->index, value);
}

static inline const char *fuzz_word(void) {
    uint32_t count = 0;
    while (fuzz_words[count])
        count++;
    return count ? fuzz_words[fuzz_random(count)] : "a";
}

static inline json_t *fuzz_scalar(void) {
    static const json_int_t whole[] = {
        0,    1,     2,         -1,        3,         7,          8,         64,
        255,  256,   65535,     65536,     1 << 20,   INT32_MAX,  INT32_MIN, (json_int_t)UINT32_MAX,
        1024, 32000, INT64_MAX, INT64_MIN, 100000000, 4294967296, 128,       16};
    static const double real[] = {0.5, 1e-5, 1e30, -2.5, 1e308, 5e-324, 10000.0, 0.02, 1e18, -0.0};
    switch (fuzz_random(6)) {
    case 0: return json_string(fuzz_word());
    case 1: return json_real(real[fuzz_random(sizeof real / sizeof real[0])]);
    case 2: return json_boolean(fuzz_random(2));
    case 3: return fuzz_random(2) ? json_null() : fuzz_random(2) ? json_array() : json_object();
    case 4: return json_integer((json_int_t)fuzz_random(300));
    default: return json_integer(whole[fuzz_random(sizeof whole / sizeof whole[0])]);
    }
}

// A little more or less of a number, some other bytes of a string.
static inline json_t *fuzz_nearby(const json_t *value) {
    if (json_is_integer(value)) {
        uint64_t number = (uint64_t)json_integer_value(value);
        static const int steps[] = {1, -1, 2, -2, 8, 128};
        if (fuzz_random(4) == 0) return json_integer((json_int_t)(fuzz_random(2) ? number * 2 : number / 2));
        return json_integer((json_int_t)(number + (uint64_t)(int64_t)steps[fuzz_random(6)]));
    }
    if (json_is_real(value)) return json_real(json_real_value(value) * (fuzz_random(2) ? -1 : 1.5));
    if (!json_is_string(value)) return NULL;
    uint8_t text[512];
    size_t length = json_string_length(value);
    if (length > sizeof text / 2) return NULL;
    memcpy(text, json_string_value(value), length);
    return json_stringn((char *)text, LLVMFuzzerMutate(text, length, sizeof text)); // NULL: not UTF-8
}

static inline void fuzz_edit(json_t *root) {
    static FuzzSlot slots[FUZZ_SLOTS_MAX];
    int count = 0;
    fuzz_slots(root, slots, &count, 0);
    if (!count) {
        if (json_is_object(root)) json_object_set_new(root, fuzz_word(), fuzz_scalar());
        if (json_is_array(root)) json_array_append_new(root, fuzz_scalar());
        return;
    }
    const FuzzSlot *slot = &slots[fuzz_random((uint32_t)count)];
    json_t *value = fuzz_slot_value(slot), *other;
    switch (fuzz_random(8)) {
    case 0: fuzz_slot_set(slot, fuzz_scalar()); break;
    case 1: // what stands elsewhere
        fuzz_slot_set(slot, json_deep_copy(fuzz_slot_value(&slots[fuzz_random((uint32_t)count)])));
        break;
    case 2:
        if (slot->key)
            json_object_del(slot->parent, slot->key);
        else
            json_array_remove(slot->parent, slot->index);
        break;
    case 3: // one more beside it
        other = fuzz_random(2) ? json_deep_copy(value) : fuzz_scalar();
        if (slot->key)
            json_object_set_new_nocheck(slot->parent, fuzz_word(), other);
        else
            json_array_insert_new(slot->parent, slot->index, other);
        break;
    case 4: // another name
        if (!slot->key) break;
        other = json_incref(value);
        json_object_del(slot->parent, slot->key);
        json_object_set_new_nocheck(slot->parent, fuzz_word(), other);
        break;
    case 5: // inside of something
        if (json_is_array(value))
            json_array_append_new(value, fuzz_scalar());
        else if (json_is_object(value))
            json_object_set_new(value, fuzz_word(), fuzz_scalar());
        else
            fuzz_slot_set(slot, json_string(fuzz_word()));
        break;
    default:
        other = fuzz_nearby(value);
        if (other) fuzz_slot_set(slot, other);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    fuzz_random_state = seed * 0x9E3779B97F4A7C15u + 1;
    json_t *root = fuzz_random(8) ? json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL) : NULL;
    if (!root) return LLVMFuzzerMutate(data, size, max);
    for (uint32_t edits = 1 + fuzz_random(3); edits; edits--)
        fuzz_edit(root);
    size_t length = json_dumpb(root, (char *)data, max, JSON_COMPACT);
    json_decref(root);
    return length && length <= max ? length : LLVMFuzzerMutate(data, size, max);
}

// The text of a value as a file; what is missing is an empty one.
static inline void fuzz_file_put_json(const char *path, const json_t *value) {
    static char text[1 << 16];
    size_t length = value ? json_dumpb(value, text, sizeof text, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
    fuzz_file_put(path, text, length <= sizeof text ? length : 0);
}
