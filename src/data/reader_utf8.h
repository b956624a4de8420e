// UTF-8 checks for documents: what a tokenizer gets is always well-formed.
#pragma once

#include <stddef.h>

size_t utf8_first_invalid(const char *text, size_t length); // offset of the first malformed byte, or length
size_t utf8_count(const char *text, size_t length);         // code points of well-formed text
size_t utf8_write(char *out, unsigned code_point);          // at most 4 bytes; how many
