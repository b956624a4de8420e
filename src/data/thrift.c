#include "data/thrift.h"

#define DEPTH_LIMIT 32

static uint8_t byte_next(Thrift *thrift) {
    if (thrift_failed(thrift)) return 0;
    if (thrift->at >= thrift->end) {
        thrift->cut = true;
        return 0;
    }
    return *thrift->at++;
}

static uint64_t varint_next(Thrift *thrift) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = byte_next(thrift);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    thrift->broken = true;
    return 0;
}

static int64_t zigzag_next(Thrift *thrift) {
    uint64_t value = varint_next(thrift);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

bool thrift_field(Thrift *thrift, ThriftField *field) {
    uint8_t head = byte_next(thrift);
    field->type = head & 0x0f;
    if (thrift_failed(thrift) || field->type == THRIFT_STOP) return false;
    int64_t id = head >> 4 ? field->id + (head >> 4) : zigzag_next(thrift);
    if (id < 0 || id > 32767) thrift->broken = true;
    field->id = (int)(id & 0x7fff);
    return !thrift_failed(thrift);
}

int64_t thrift_int(Thrift *thrift, ThriftField field) {
    if (field.type == THRIFT_BYTE) return (int8_t)byte_next(thrift);
    if (field.type != THRIFT_I16 && field.type != THRIFT_I32 && field.type != THRIFT_I64) {
        thrift->broken = true;
        return 0;
    }
    int64_t value = zigzag_next(thrift);
    if (field.type == THRIFT_I32 && value != (int32_t)value) thrift->broken = true;
    return thrift_failed(thrift) ? 0 : value;
}

bool thrift_bool(Thrift *thrift, ThriftField field) {
    if (field.type != THRIFT_TRUE && field.type != THRIFT_FALSE) thrift->broken = true;
    return field.type == THRIFT_TRUE;
}

const char *thrift_binary(Thrift *thrift, ThriftType type, size_t *length) {
    *length = 0;
    if (type != THRIFT_BINARY) thrift->broken = true;
    uint64_t bytes = varint_next(thrift);
    if (thrift_failed(thrift)) return "";
    if (bytes > (uint64_t)(thrift->end - thrift->at)) {
        thrift->cut = true;
        return "";
    }
    const char *data = (const char *)thrift->at;
    thrift->at += bytes;
    *length = bytes;
    return data;
}

size_t thrift_list(Thrift *thrift, ThriftType type, ThriftType *element) {
    if (type != THRIFT_LIST && type != THRIFT_SET) thrift->broken = true;
    uint8_t head = byte_next(thrift);
    *element = head & 0x0f;
    uint64_t count = head >> 4 == 15 ? varint_next(thrift) : head >> 4;
    if (thrift_failed(thrift)) return 0;
    if (count > (uint64_t)(thrift->end - thrift->at)) {
        thrift->cut = true;
        return 0;
    }
    return count;
}

static void bytes_skip(Thrift *thrift, size_t bytes) {
    if ((size_t)(thrift->end - thrift->at) < bytes) {
        thrift->cut = true;
    } else {
        thrift->at += bytes;
    }
}

static void element_skip(Thrift *thrift, ThriftType type) {
    // Booleans have no byte of their own as fields, but one each as elements.
    if (type == THRIFT_TRUE || type == THRIFT_FALSE) {
        byte_next(thrift);
    } else {
        thrift_skip(thrift, type);
    }
}

static void container_skip(Thrift *thrift, ThriftType type) {
    if (type == THRIFT_STRUCT) {
        ThriftField field = {0};
        while (thrift_field(thrift, &field))
            thrift_skip(thrift, field.type);
    } else if (type == THRIFT_MAP) {
        uint64_t count = varint_next(thrift);
        uint8_t types = count ? byte_next(thrift) : 0;
        for (uint64_t i = 0; i < count && !thrift_failed(thrift); i++) {
            element_skip(thrift, types >> 4);
            element_skip(thrift, types & 0x0f);
        }
    } else {
        ThriftType element;
        size_t count = thrift_list(thrift, type, &element);
        for (size_t i = 0; i < count && !thrift_failed(thrift); i++)
            element_skip(thrift, element);
    }
}

void thrift_skip(Thrift *thrift, ThriftType type) {
    size_t length;
    if (thrift_failed(thrift)) return;
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE: return;
    case THRIFT_BYTE: byte_next(thrift); return;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: varint_next(thrift); return;
    case THRIFT_DOUBLE: bytes_skip(thrift, 8); return;
    case THRIFT_BINARY: thrift_binary(thrift, type, &length); return;
    case THRIFT_LIST:
    case THRIFT_SET:
    case THRIFT_MAP:
    case THRIFT_STRUCT:
        if (++thrift->depth > DEPTH_LIMIT) {
            thrift->broken = true;
            return;
        }
        container_skip(thrift, type);
        thrift->depth--;
        return;
    default: thrift->broken = true;
    }
}
