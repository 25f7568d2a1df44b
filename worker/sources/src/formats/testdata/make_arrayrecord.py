"""Writes the files in `arrayrecord` with the library array_record, and `expected.json` with the records that it reads.

    pip install array_record==0.8.6
    python make_arrayrecord.py

The files are mostly padding, so they are compressed with gzip.
"""

import gzip
import hashlib
import json
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

HERE = Path(__file__).parent / "arrayrecord"


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(row):
    """A `tf.train.Example` with the features `id` (int64) and `text` (bytes)."""
    ids = field(3, field(1, varint(row)))
    text = field(1, field(1, b"row %d" % row))
    features = field(1, field(1, b"id") + field(2, ids)) + field(1, field(1, b"text") + field(2, text))
    return field(1, features)


def messages():
    """Messages with every wire type, nested messages and groups, among records that are not messages."""
    rows = []
    for row in range(40):
        inner = b"".join(varint(8) + varint(value) for value in (row, 300 * row, 1 << (row + 20), 127, 128))
        inner += varint(16 << 3 | 1) + row.to_bytes(8, "little") + varint(17 << 3 | 5) + row.to_bytes(4, "big")
        group = varint(9 << 3 | 3) + varint(3 << 3) + varint(row) + varint(9 << 3 | 4)
        nested = field(2000, field(5, inner) + field(5, b"")) + field(7, b"text %d" % row * (row % 3)) + group
        rows += [nested * (row % 4), b"\xff" * (row % 5)]
    return rows


def records(kind):
    if kind == "examples":
        return [example(row) for row in range(30)]
    if kind == "large":
        return [b"%d," % row * (row * 4_500) for row in range(9)]
    if kind == "mixed":
        return messages()
    return [b"record %d " % row * (row % 5) for row in range(50)]


def write(name, options, kind="small"):
    file = HERE / name
    writer = ArrayRecordWriter(str(file), options)
    for record in records(kind):
        writer.write(record)
    writer.close()
    reader = ArrayRecordReader(str(file))
    read = reader.read_all() if reader.num_records() else []
    assert read == records(kind)[: len(read)]
    (HERE / f"{name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    file.unlink()
    return [record.hex() if len(record) < 100 else hashlib.sha256(record).hexdigest() for record in read]


HERE.mkdir(exist_ok=True)
expected = {}
for name, options in {
    "one": "group_size:1,uncompressed",
    "none": "group_size:7,uncompressed",
    "zstd": "group_size:7,zstd:5",
    "brotli": "group_size:7,brotli:9",
    "snappy": "group_size:7,snappy",
    "one_zstd": "group_size:1",
    "padded": "group_size:20,pad_to_block_boundary:true",
}.items():
    assert expected.setdefault("small", write(name, options)) == write(name, options)
expected["large"] = write("large", "group_size:1,uncompressed", "large")
assert write("large_groups", "group_size:4,uncompressed", "large") == expected["large"]
write("examples", "group_size:8", "examples")
write("transposed", "group_size:8,transpose:true", "examples")
write("transposed_none", "group_size:30,transpose:true,transpose_bucket_size:20,uncompressed", "examples")
expected["mixed"] = write("mixed", "group_size:8,transpose:true,brotli", "mixed")
(HERE / "expected.json").write_text(json.dumps(expected))
