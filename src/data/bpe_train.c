// The training loop. Each pair of neighbouring symbols knows its count and the words it occurs in; merging a pair
// touches only those words and adjusts the counts of the neighbours, and a heap with stale entries gives the next pair.
#include "data/bpe_train.h"

#include "base/text.h"
#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>

#define NO_PART UINT32_MAX

typedef struct Word { // a pre-token as symbols
    uint32_t *symbols;
    uint32_t length;
    uint64_t count;
} Word;

typedef struct Pair {
    uint32_t left, right;
    int64_t count;
    uint32_t *words; // that it occurs in, or did
    uint32_t word_count, word_capacity;
    bool merged;  // is in the list of merges
    bool touched; // got a higher count by the merge at hand
} Pair;

typedef struct HeapEntry {
    int64_t count;
    uint32_t left, right;
    uint32_t pair;
} HeapEntry;

typedef struct Trainer {
    Word *words;
    size_t word_count;
    uint32_t *symbols; // of all words
    Pair *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *slots; // open addressing: pair + 1
    unsigned slot_bits;
    HeapEntry *heap;
    size_t heap_count, heap_capacity;
    uint32_t *touched; // pairs whose count rose in this merge
    size_t touched_count, touched_capacity;
    Vocab spelled; // bytes of each token, to see when a merge makes one that exists
} Trainer;

// --- heap: highest count first, then the lowest ids -----------------------------------------------------------------

static bool pair_comes_before(const HeapEntry *a, const HeapEntry *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void pair_heap_push(Trainer *trainer, uint32_t pair_index) {
    const Pair *pair = &trainer->pairs[pair_index];
    HeapEntry entry = {pair->count, pair->left, pair->right, pair_index};
    if (trainer->heap_count == trainer->heap_capacity) {
        trainer->heap_capacity = 2 * trainer->heap_capacity + 1024;
        trainer->heap = xrealloc(trainer->heap, trainer->heap_capacity * sizeof *trainer->heap);
    }
    HeapEntry *heap = trainer->heap;
    size_t at = trainer->heap_count++;
    for (; at > 0 && pair_comes_before(&entry, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

static HeapEntry pair_heap_pop(Trainer *trainer) {
    HeapEntry *heap = trainer->heap, top = heap[0], last = heap[--trainer->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < trainer->heap_count; at = child) {
        if (child + 1 < trainer->heap_count && pair_comes_before(&heap[child + 1], &heap[child])) child++;
        if (!pair_comes_before(&heap[child], &last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

// --- pairs ----------------------------------------------------------------------------------------------------------

static size_t pair_slot(const Trainer *trainer, uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    return (key * 0x9e3779b97f4a7c15u) >> (64 - trainer->slot_bits);
}

static void pair_slots_double(Trainer *trainer) {
    free(trainer->slots);
    trainer->slot_bits++;
    trainer->slots = xcalloc((size_t)1 << trainer->slot_bits, sizeof *trainer->slots);
    size_t mask = ((size_t)1 << trainer->slot_bits) - 1;
    for (size_t i = 0; i < trainer->pair_count; i++) {
        size_t slot = pair_slot(trainer, trainer->pairs[i].left, trainer->pairs[i].right);
        while (trainer->slots[slot])
            slot = (slot + 1) & mask;
        trainer->slots[slot] = (uint32_t)i + 1;
    }
}

static uint32_t pair_get(Trainer *trainer, uint32_t left, uint32_t right) {
    size_t mask = ((size_t)1 << trainer->slot_bits) - 1;
    size_t slot = pair_slot(trainer, left, right);
    for (; trainer->slots[slot]; slot = (slot + 1) & mask) {
        const Pair *pair = &trainer->pairs[trainer->slots[slot] - 1];
        if (pair->left == left && pair->right == right) return trainer->slots[slot] - 1;
    }
    if (trainer->pair_count == trainer->pair_capacity) {
        trainer->pair_capacity *= 2;
        trainer->pairs = xrealloc(trainer->pairs, trainer->pair_capacity * sizeof *trainer->pairs);
    }
    uint32_t index = (uint32_t)trainer->pair_count++;
    trainer->pairs[index] = (Pair){.left = left, .right = right};
    trainer->slots[slot] = index + 1;
    if (trainer->pair_count > (size_t)1 << (trainer->slot_bits - 1)) pair_slots_double(trainer);
    return index;
}

static void pair_add(Trainer *trainer, uint32_t left, uint32_t right, uint32_t word, uint64_t count) {
    uint32_t index = pair_get(trainer, left, right);
    Pair *pair = &trainer->pairs[index];
    pair->count += (int64_t)count;
    if (!pair->touched) {
        pair->touched = true;
        if (trainer->touched_count == trainer->touched_capacity) {
            trainer->touched_capacity = 2 * trainer->touched_capacity + 256;
            trainer->touched = xrealloc(trainer->touched, trainer->touched_capacity * sizeof *trainer->touched);
        }
        trainer->touched[trainer->touched_count++] = index;
    }
    if (pair->word_count && pair->words[pair->word_count - 1] == word) return;
    if (pair->word_count == pair->word_capacity) {
        pair->word_capacity = pair->word_capacity ? 2 * pair->word_capacity : 4;
        pair->words = xrealloc(pair->words, pair->word_capacity * sizeof *pair->words);
    }
    pair->words[pair->word_count++] = word;
}

static void pair_take(Trainer *trainer, uint32_t left, uint32_t right, uint64_t count) {
    trainer->pairs[pair_get(trainer, left, right)].count -= (int64_t)count;
}

static void touched_pairs_push(Trainer *trainer) {
    for (size_t i = 0; i < trainer->touched_count; i++) {
        Pair *pair = &trainer->pairs[trainer->touched[i]];
        pair->touched = false;
        if (pair->count > 0) pair_heap_push(trainer, trainer->touched[i]);
    }
    trainer->touched_count = 0;
}

// --- words ----------------------------------------------------------------------------------------------------------

static int compare_words(const void *a, const void *b) {
    const Word *left = a, *right = b;
    if (left->count != right->count) return left->count > right->count ? -1 : 1;
    return left->symbols < right->symbols ? -1 : left->symbols > right->symbols;
}

static void load_words(Trainer *trainer, const BpeCounts *counts, const uint32_t byte_ids[256]) {
    size_t slots = (size_t)1 << counts->bits, total = 0, length;
    uint8_t space[16];
    trainer->words = xmalloc((counts->used + 1) * sizeof *trainer->words);
    for (size_t i = 0; i < slots; i++) {
        if (!counts->entries[i].high) continue;
        bpe_count_word(counts, &counts->entries[i], space, &length);
        total += length;
    }
    uint32_t *symbols = trainer->symbols = xmalloc((total + 1) * sizeof *symbols);
    for (size_t i = 0; i < slots; i++) {
        if (!counts->entries[i].high) continue;
        const uint8_t *text = bpe_count_word(counts, &counts->entries[i], space, &length);
        trainer->words[trainer->word_count++] = (Word){symbols, (uint32_t)length, counts->entries[i].count};
        for (size_t j = 0; j < length; j++)
            *symbols++ = byte_ids[text[j]];
    }
    // Frequent words are touched most: together they stay in a near cache.
    qsort(trainer->words, trainer->word_count, sizeof *trainer->words, compare_words);
    for (uint32_t w = 0; w < trainer->word_count; w++) {
        const Word *word = &trainer->words[w];
        for (uint32_t i = 0; i + 1 < word->length; i++)
            pair_add(trainer, word->symbols[i], word->symbols[i + 1], w, word->count);
    }
    touched_pairs_push(trainer);
}

// Joins every left, right of one word into `id` and keeps the counts of all pairs right.
static void merge_in_word(Trainer *trainer, uint32_t index, uint32_t left, uint32_t right, uint32_t id) {
    Word *word = &trainer->words[index];
    uint32_t *symbols = word->symbols, kept = 0;
    for (uint32_t i = 0; i < word->length; i++) {
        if (symbols[i] != left || i + 1 >= word->length || symbols[i + 1] != right) {
            symbols[kept++] = symbols[i];
            continue;
        }
        if (kept > 0) {
            pair_take(trainer, symbols[kept - 1], left, word->count);
            pair_add(trainer, symbols[kept - 1], id, index, word->count);
        }
        if (i + 2 < word->length) {
            pair_take(trainer, right, symbols[i + 2], word->count);
            pair_add(trainer, id, symbols[i + 2], index, word->count);
        }
        symbols[kept++] = id;
        i++;
    }
    word->length = kept;
}

// --- the loop -------------------------------------------------------------------------------------------------------

static uint32_t token_add(BpeTraining *training, Trainer *trainer, uint32_t left, uint32_t right, const char *text,
                          size_t length) {
    uint32_t id = (uint32_t)training->token_count++;
    training->tokens[id] = (BpeToken){left, right};
    vocab_set(&trainer->spelled, id, text, length);
    return id;
}

static void add_first_tokens(BpeTraining *training, Trainer *trainer, const BpeTrainOptions *options,
                             uint32_t byte_ids[256]) {
    for (size_t i = 0; i < options->special_count; i++) {
        const char *special = options->special[i];
        size_t length = strlen(special);
        char *bytes = xmalloc(length + 1);
        // A merge that would be spelled like a special token is that token: a vocabulary has each string once.
        bool alphabet = vocab_text_to_bytes(special, length, (uint8_t *)bytes, &length);
        uint32_t id = token_add(training, trainer, NO_PART, NO_PART, alphabet ? bytes : special, length);
        if (alphabet) vocab_index(&trainer->spelled, id);
        free(bytes);
    }
    training->first_byte = (uint32_t)training->token_count;
    for (uint32_t character = 0; character < 0x144; character++) {
        int byte = vocab_char_byte(character);
        if (byte < 0) continue;
        char text = (char)byte;
        byte_ids[byte] = token_add(training, trainer, NO_PART, NO_PART, &text, 1);
        vocab_index(&trainer->spelled, byte_ids[byte]);
    }
}

// The token that left and right make; a new one unless another merge already makes the same bytes.
static uint32_t merged_token(BpeTraining *training, Trainer *trainer, TextBuffer *text, uint32_t left, uint32_t right) {
    size_t left_length = 0, right_length = 0;
    const uint8_t *bytes = vocab_get(&trainer->spelled, left, &left_length);
    text->length = 0;
    text_buffer_add(text, (const char *)bytes, left_length);
    bytes = vocab_get(&trainer->spelled, right, &right_length);
    text_buffer_add(text, (const char *)bytes, right_length);
    uint32_t id = vocab_find(&trainer->spelled, text->data, text->length);
    if (id != VOCAB_NONE) return id;
    id = token_add(training, trainer, left, right, text->data, text->length);
    vocab_index(&trainer->spelled, id);
    return id;
}

static void run_merges(BpeTraining *training, Trainer *trainer, const BpeTrainOptions *options) {
    int64_t least = options->min_count > 1 ? options->min_count : 1;
    size_t capacity = 0;
    TextBuffer text = {0};
    while (training->token_count < (size_t)options->vocab_size && trainer->heap_count > 0) {
        HeapEntry top = pair_heap_pop(trainer);
        Pair *pair = &trainer->pairs[top.pair];
        if (pair->count != top.count) { // it lost occurrences since
            if (pair->count > 0 && pair->count < top.count) pair_heap_push(trainer, top.pair);
            continue;
        }
        if (top.count < least) break;
        uint32_t id = merged_token(training, trainer, &text, top.left, top.right);
        if (!pair->merged) {
            if (training->merge_count == capacity) {
                capacity = 2 * capacity + 1024;
                training->merges = xrealloc(training->merges, capacity * sizeof *training->merges);
            }
            training->merges[training->merge_count][0] = top.left;
            training->merges[training->merge_count++][1] = top.right;
        }
        uint32_t *words = pair->words, word_count = pair->word_count;
        pair->merged = true;
        pair->words = NULL;
        pair->word_count = pair->word_capacity = 0;
        for (uint32_t i = 0; i < word_count; i++)
            merge_in_word(trainer, words[i], top.left, top.right, id);
        free(words);
        trainer->pairs[top.pair].count = 0;
        touched_pairs_push(trainer);
        if (options->progress && training->token_count % 256 == 0)
            options->progress((int64_t)training->token_count, options->vocab_size, options->progress_context);
    }
    text_buffer_free(&text);
}

Status bpe_train_check(const BpeTrainOptions *options) {
    int64_t least = 256 + (int64_t)options->special_count;
    if (options->vocab_size < least || options->vocab_size > 1 << 20)
        return status_hint(
            status_usage("a vocabulary of %lld tokens cannot be trained", (long long)options->vocab_size),
            "it needs %lld for the bytes and special tokens, and 1048576 is the most", (long long)least);
    for (size_t i = 0; i < options->special_count; i++) {
        if (!*options->special[i]) return status_usage("a special token is empty");
        unsigned first = utf8_length((uint8_t)*options->special[i]);
        if (strlen(options->special[i]) <= first) // it would take the place of a byte
            return status_usage("the special token \"%s\" is a single character", options->special[i]);
        for (size_t j = 0; j < i; j++) {
            if (strcmp(options->special[i], options->special[j]) == 0)
                return status_usage("the special token \"%s\" is given twice", options->special[i]);
        }
    }
    return NULL;
}

void bpe_train(BpeTraining *training, const BpeCounts *counts, const BpeTrainOptions *options) {
    Trainer trainer = {.slot_bits = 16, .pair_capacity = 1024};
    uint32_t byte_ids[256];
    *training = (BpeTraining){0};
    training->tokens = xmalloc((size_t)options->vocab_size * sizeof *training->tokens);
    trainer.slots = xcalloc((size_t)1 << trainer.slot_bits, sizeof *trainer.slots);
    trainer.pairs = xmalloc(trainer.pair_capacity * sizeof *trainer.pairs);
    vocab_init(&trainer.spelled, (size_t)options->vocab_size);
    add_first_tokens(training, &trainer, options, byte_ids);
    load_words(&trainer, counts, byte_ids);
    run_merges(training, &trainer, options);
    for (size_t i = 0; i < trainer.pair_count; i++)
        free(trainer.pairs[i].words);
    free(trainer.pairs);
    free(trainer.slots);
    free(trainer.heap);
    free(trainer.touched);
    free(trainer.words);
    free(trainer.symbols);
    vocab_free(&trainer.spelled);
}

void bpe_training_free(BpeTraining *training) {
    free(training->tokens);
    free(training->merges);
    *training = (BpeTraining){0};
}
