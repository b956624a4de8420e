#!/usr/bin/env python3
"""Writes Parquet files of many shapes and, beside each, what `hearth data cat` must print for it.

usage: make_parquet.py FOLDER      (needs pyarrow; not part of the test suite)
       make_parquet.py FOLDER PROGRAM...   also runs PROGRAM... FILE for each and compares

FOLDER/name.parquet and FOLDER/name.expected: the texts, each followed by a NUL byte, nulls left out.
"""
import itertools
import pathlib
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

random.seed(1)
WORDS = ["alpha", "Zürich", "日本語", "emoji 😀", "", "x" * 300, "tab\tnewline\n", "nul\0inside", "again", "again"]


def texts(count, nulls):
    out = []
    for i in range(count):
        if nulls and random.random() < nulls:
            out.append(None)
        else:
            out.append(random.choice(WORDS) * random.randrange(1, 4) + (str(i) if i % 3 else ""))
    return out


def cases():
    for codec, version, dictionary, nulls in itertools.product(
        ["none", "snappy", "zstd", "gzip"], ["1.0", "2.0"], [False, True], [0, 0.3, 1.0]
    ):
        name = f"{codec}-v{version[0]}-{'dict' if dictionary else 'plain'}-null{int(nulls * 10)}"
        yield name, texts(3000, nulls), dict(
            compression=codec,
            data_page_version=version,
            use_dictionary=dictionary,
            row_group_size=1000,
            data_page_size=4096,
        )
    for encoding in ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
        for nulls in [0, 0.3]:
            for version in ["1.0", "2.0"]:
                yield f"{encoding.lower()}-v{version[0]}-null{int(nulls * 10)}", sorted(
                    (t for t in texts(3000, 0)), key=str
                ) if not nulls else texts(3000, nulls), dict(
                    compression="snappy",
                    use_dictionary=False,
                    column_encoding={"text": encoding},
                    data_page_version=version,
                    data_page_size=4096,
                )
    # A dictionary that grows over its limit: the chunk goes on with plain pages.
    yield "dict-overflow", [f"unique text number {i} " * 5 for i in range(20000)], dict(
        compression="snappy", use_dictionary=True, dictionary_pagesize_limit=50000, data_page_size=8192
    )
    yield "tiny-pages", texts(2000, 0.1), dict(compression="zstd", data_page_size=1, write_batch_size=1)
    yield "tiny-groups", texts(300, 0.1), dict(compression="gzip", row_group_size=1)
    yield "large-strings", ["a" * 5_000_000, "b", "ü" * 3_000_000], dict(compression="zstd")
    # Statistics with long minima make page headers and the footer long.
    yield "long-headers", ["m" * 100_000 + str(i) for i in range(50)], dict(
        compression="snappy", data_page_size=1, write_batch_size=1, use_dictionary=False, write_statistics=True
    )
    yield "checksums", texts(1000, 0.1), dict(compression="snappy", write_page_checksum=True)
    yield "empty", [], dict(compression="snappy")
    yield "one-null", [None], dict(compression="snappy")


def main():
    folder = pathlib.Path(sys.argv[1])
    program = sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name, column, options in cases():
        path = folder / f"{name}.parquet"
        required = None not in column and hash(name) % 2 == 0
        schema = pa.schema(
            [
                pa.field("id", pa.int64()),
                pa.field("text", pa.string(), nullable=not required),
                pa.field("score", pa.float64()),
                pa.field("nested", pa.struct([pa.field("text", pa.string())])),
            ]
        )
        table = pa.table(
            {
                "id": list(range(len(column))),
                "text": column,
                "score": [i / 10 if i % 7 else None for i in range(len(column))],
                "nested": [{"text": "inner"}] * len(column),
            },
            schema=schema,
        )
        pq.write_table(table, path, **options)
        expected = b"".join(t.encode() + b"\0" for t in column if t is not None)
        (folder / f"{name}.expected").write_bytes(expected)
        if program:
            result = subprocess.run(program + [str(path)], capture_output=True)
            if result.returncode or result.stdout != expected:
                failures += 1
                print(f"FAILED {name}: {result.stderr.decode()[-300:]}")
    if program:
        print(f"{failures} failures")
    sys.exit(failures > 0)


main()
