// Generation with a key-value cache: feed tokens, get the logits of the next one. One sequence at a time.
#pragma once

#include "model/model.h"

typedef struct Generator Generator;

// positions: the longest sequence, prompt included. The model must outlive the generator.
Status generator_create(Generator **generator, Model *model, int positions);
void generator_free(Generator *generator);

// Appends n tokens (n <= positions left) and gives the logits after the last one: host array [vocab].
void generator_feed(Generator *generator, const int32_t *ids, int n, float *logits);
void generator_reset(Generator *generator);
