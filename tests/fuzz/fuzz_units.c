// Any bytes as a unit of prepare's work folder, with checksums made right, so that what lies behind them is reached;
// merged with a sound unit, to the last record.
#define MERGE_BUFFER_MAX ((size_t)40)
#define MERGE_BUFFER_MIN ((size_t)40)
#include "data/prepare_unit.c"
#include "fuzz_files.h"

static void unit_make(void) {
    UnitBuffer *buffer = unit_buffer_new(2);
    const uint32_t ids[] = {1, 2, 3};
    unit_buffer_add(buffer, (DocumentHash){1, 2}, 5, ids, 3);
    unit_buffer_add(buffer, (DocumentHash){9, 2}, 5, ids, 1);
    if (unit_buffer_write(buffer, "/mem/work", 0, (ReaderPosition){0, 2}, &(PrepareCounts){.documents = 2}, UNIT_MORE))
        abort();
    unit_buffer_free(buffer);
    fuzz_files_fix();
}

static void units_merge(void) {
    UnitMerge *merge;
    Status status = unit_merge_open(&merge, "/mem/work", 2);
    bool more = !status;
    while (more && !status) {
        UnitRecord record;
        const uint32_t *ids;
        status = unit_merge_next(merge, &record, &ids, &more);
        if (!status && more && record.token_count && ids[record.token_count - 1] == UINT32_MAX) status_free(NULL);
    }
    status_free(status);
    unit_merge_close(merge);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made;
    if (!made) unit_make();
    made = true;
    UnitHeader header;
    uint8_t *copy = malloc(size);
    memcpy(copy, data, size);
    if (size >= sizeof header && data[0] != 'X') { // X: as it is
        memcpy(&header, data, sizeof header);
        memcpy(header.magic, "HEARTHUN", 8);
        header.version = UNIT_VERSION;
        uint64_t left = size - sizeof header, records = header.record_count * sizeof(UnitRecord);
        if (header.record_count <= left / sizeof(UnitRecord)) {
            header.records_checksum = XXH64(data + sizeof header, records, 0);
            header.tokens_checksum = XXH64(data + sizeof header + records, left - records, 0);
        }
        header.checksum = XXH64(&header, offsetof(UnitHeader, checksum), 0);
        memcpy(copy, &header, sizeof header);
    }
    fuzz_file_put("/mem/work/unit-000001", copy, size);
    free(copy);
    units_merge();
    fuzz_files_clear();
    return 0;
}
