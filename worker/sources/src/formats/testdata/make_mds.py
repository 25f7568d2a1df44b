"""Writes the directories in `mds` with MosaicML Streaming, and `expected.json` with the rows that the library reads.

    pip install mosaicml-streaming==0.13.0
    python make_mds.py

Raw images are expected as pixels, encoded images as their SHA-256. Arrays of a fixed shape are flat lists.
"""

import hashlib
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.format import reader_from_json
from streaming.base.hashing import get_hashes

HERE = Path(__file__).parent / "mds"
SCALARS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def image(row, mode, size=(3, 2)):
    pixels = np.arange(row, row + size[0] * size[1] * 4, dtype=np.uint8)
    if mode == "1":
        return Image.fromarray((pixels[: size[0] * size[1]] % 3 == 0).reshape(size[1], size[0]))
    if mode == "I;16":
        return Image.fromarray((pixels[: size[0] * size[1]].astype(np.uint16) * 257 + 5).reshape(size[1], size[0]))
    return Image.frombytes(mode, size, pixels.tobytes()[: size[0] * size[1] * len(mode)])


def encoded(row, kind):
    file = io.BytesIO()
    image(row, "L").save(file, format=kind, optimize=True)
    return file.getvalue()


def all_encodings():
    columns = {name: name for name in SCALARS}
    columns |= {
        "bytes": "bytes", "str": "str", "int": "int", "json": "json",
        "str_int": "str_int", "str_float": "str_float", "str_decimal": "str_decimal",
        "array": "ndarray", "array_typed": "ndarray:int32", "array_fixed": "ndarray:int16:2,3",
        "array_flat": "ndarray:float32",
        "jpeg": "jpeg", "png": "png", "jpeg_array": "jpeg_array",
        "list_jpeg": "list[jpeg]", "list_png": "list[png]", "list_pil": "list[pil]",
        "pil": "pil", "pil_l": "pil", "pil_bits": "pil", "pil_16": "pil", "pil_rgba": "pil", "pil_la": "pil",
    }
    rows = []
    for row in range(3):
        sample = {name: np.dtype(name).type(row * 3 + 1) for name in SCALARS}
        for name in SCALARS:
            if np.dtype(name).kind != "u":
                sample[name] = np.dtype(name).type(row - 2.5 if name.startswith("f") else row - 2)
        sample |= {
            "bytes": bytes(range(row)), "str": "äö" * row, "int": row - 2**40, "json": {"a": [row, None], "b": "ß"},
            "str_int": -(10**row), "str_float": row / 8 - 1, "str_decimal": Decimal("1.10") * row,
            "array": np.arange(row + 1, dtype=np.uint16).reshape(1, row + 1),
            "array_typed": np.arange(2 * row + 2, dtype=np.int32).reshape(2, 1, row + 1) - 3,
            "array_fixed": np.arange(6, dtype=np.int16).reshape(2, 3) * row,
            "array_flat": np.arange(row + 1, dtype=np.float32) / 4,
            "jpeg": encoded(row, "JPEG"), "png": image(row, "RGB"),
            "jpeg_array": [encoded(row + part, "JPEG") for part in range(1 + row % 2)],
            "list_jpeg": [image(row, "L")], "list_png": [image(row + part, "L") for part in range(row % 3)],
            "list_pil": [image(row, "RGB"), image(row, "L", (1, row + 1))],
            "pil": image(row, "RGB", (row + 1, 2)), "pil_l": image(row, "L"), "pil_bits": image(row, "1", (9, 2)),
            "pil_16": image(row, "I;16"), "pil_rgba": image(row, "RGBA"), "pil_la": image(row, "LA"),
        }
        rows.append(sample)
    return columns, rows


def plain(value):
    """Converts a value of the library to JSON."""
    if isinstance(value, Image.Image):
        return value.tobytes().hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value


def write(name, columns, rows, **settings):
    folder = HERE / name
    with MDSWriter(out=str(folder), columns=columns, **settings) as out:
        for row in rows:
            out.write(row)
    return read(folder, settings.get("compression"))


def read(folder, compression):
    """Returns the rows that the library reads."""
    from streaming.base.compression import decompress

    expected = []
    index = json.loads((folder / "index.json").read_text())
    for entry in index["shards"]:
        raw = folder / entry["raw_data"]["basename"]
        if compression:
            packed = folder / entry["zip_data"]["basename"]
            raw.write_bytes(decompress(compression, packed.read_bytes()))
        shard = reader_from_json(str(folder), None, entry)
        for row in range(len(shard)):
            expected.append({name: value_of(shard, row, name) for name in shard.column_names})
        if compression:
            raw.unlink()
    return expected


def value_of(shard, row, name):
    encoding = shard.column_encodings[shard.column_names.index(name)]
    if encoding in ("jpeg", "png", "jpeg_array", "list[jpeg]", "list[png]"):
        return {"stored": raw_values(shard, row, name, encoding)}
    value = shard[row][name]
    if encoding == "json":
        return json.dumps(value)
    if encoding.count(":") == 2:
        return value.ravel().tolist()
    return plain(value)


def raw_values(shard, row, name, encoding):
    """The encoded images, as the library splits them."""
    from streaming.base.format.mds import encodings

    images, decode = [], encodings.Image.open
    digest = lambda file: hashlib.sha256(file.getvalue()).hexdigest()
    encodings.Image.open = lambda file: images.append(digest(file)) or decode(file)
    data = shard.get_sample_data(row)
    sizes, at = [], 0
    for size in shard.column_sizes:
        if not size:
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4
        sizes.append(size)
    for column, size in zip(shard.column_names, sizes):
        if column == name:
            encodings.mds_decode(encoding, data[at : at + size])
        at += size
    encodings.Image.open = decode
    return images if encoding not in ("jpeg", "png") else images[0]


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    expected = {}
    columns, rows = all_encodings()
    expected["all"] = write("all", columns, rows, size_limit=6000)
    small = {"id": "int", "text": "str", "array": "ndarray"}
    samples = [{"id": row, "text": f"row {row} " * (row % 7), "array": np.full(row % 3 + 1, row, np.int16)} for row in range(40)]
    for compression in ("zstd", "zstd:7", "gz", "gz:1", "bz2", "br", "snappy"):
        hashes = ["sha1", "xxh64"] if compression != "br" else sorted(get_hashes())
        name = compression.replace(":", "")
        read_rows = write(name, small, samples, compression=compression, hashes=hashes, size_limit=1500)
        assert expected.setdefault("small", read_rows) == read_rows
    read_rows = write("hashed", small, samples, hashes=["sha1", "sha256", "xxh3_128"], size_limit=1500)
    assert read_rows == expected["small"]
    write("pickled", {"id": "int", "object": "pkl"}, [{"id": 1, "object": {"a": 1}}])
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))


main()
