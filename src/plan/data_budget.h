// Data: documents for a token target, disk for the shards, padding, and the tokenizer's speed.
#pragma once

double plan_docs_for_tokens(double tokens, double tokens_per_doc, double buffer); // buffer 0.25: a quarter more
double plan_useful_fraction(double tokens_per_doc, double seq);                   // one document per padded sequence
double plan_dataset_bytes(double tokens, double bytes_per_token);
double plan_token_bytes(double vocab); // of one token in a shard; 0: not known, taken for a large one
double plan_tokenizer_workers(double memory_bytes, double bytes_per_worker);
double plan_rate_per_worker(double tokens, double seconds, double workers);
