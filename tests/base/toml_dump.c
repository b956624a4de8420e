// toml_dump FILE...: one line of JSON per document, for toml_compare.py. A value is [kind, content]: numbers as text,
// so that no JSON reader rounds them; tables as lists of pairs, so that order shows. A refused document is {"error":
// text}.
#include "base/json.h"
#include "base/text.h"
#include "base/toml.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *dump(const TomlValue *value) {
    switch (value->type) {
    case TOML_STRING: return json_pack("[s, s%]", "string", value->text, value->length);
    case TOML_DATETIME: return json_pack("[s, s%]", "datetime", value->text, value->length);
    case TOML_BOOLEAN: return json_pack("[s, b]", "boolean", value->boolean);
    case TOML_INTEGER:
    case TOML_FLOAT: {
        char *text = value->type == TOML_INTEGER ? text_format("%lld", (long long)value->integer)
                                                 : text_format("%.17g", value->number);
        json_t *pair = json_pack("[s, s]", value->type == TOML_INTEGER ? "integer" : "float", text);
        free(text);
        return pair;
    }
    case TOML_ARRAY:
    case TOML_TABLE: break;
    }
    json_t *items = json_array();
    for (size_t i = 0; i < value->length; i++) {
        json_t *item = dump(value->values[i]);
        if (value->type == TOML_TABLE) item = json_pack("[s%, o]", value->keys[i], value->key_lengths[i], item);
        json_array_append_new(items, item);
    }
    return json_pack("[s, o]", value->type == TOML_TABLE ? "table" : "array", items);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        Toml toml;
        Status status = toml_read_file(&toml, argv[i]);
        json_t *line = status ? json_pack("{s:s}", "error", status_text(status)) : dump(toml.root);
        status_free(status);
        toml_free(&toml);
        json_dumpf(line, stdout, JSON_COMPACT);
        printf("\n");
        json_decref(line);
    }
    return 0;
}
