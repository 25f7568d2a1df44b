"""Writes the directories in `litdata` with LitData, and `expected.json` with the items that the library reads.

    pip install litdata==0.2.76 pyarrow pillow numpy tifffile torchvision zstd
    python make_litdata.py

Raw images are expected as pixels, encoded images as their SHA-256.
"""

import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from litdata import StreamingDataset
from litdata.streaming.cache import Cache
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming import serializers
from litdata.types import Audio, File, Image as ImageRef, Jpeg, JpegArray, Mesh, Nifti, Pdf, Pil, Tensor, Text, Tiff, Video

HERE = Path(__file__).parent / "litdata"


def image(row, mode="L", size=(3, 2)):
    pixels = np.arange(row, row + size[0] * size[1] * len(mode), dtype=np.uint8)
    return Image.frombytes(mode, size, pixels.tobytes())


def jpeg(row):
    file = io.BytesIO()
    image(row).save(file, format="JPEG", optimize=True)
    return Image.open(io.BytesIO(file.getvalue()))


def every(row):
    return {
        "str": "äö" * row, "bool": row % 2 == 0, "int": row - 2**40, "float": row / 8 - 1, "bytes": bytes(range(row)),
        "pil": image(row, "RGB"), "jpeg": jpeg(row), "jpeg_array": [jpeg(row), jpeg(row + 1)],
        "numpy_flat": np.arange(row + 1, dtype=np.int16), "numpy": np.arange(2 * row + 2, dtype=np.float32).reshape(2, row + 1) / 4,
        "tensor_flat": torch.arange(row + 1, dtype=torch.int64), "tensor": torch.arange(4 * row + 4, dtype=torch.uint8).reshape(2, 2, row + 1),
        "scalar": torch.tensor(row / 2, dtype=torch.float64), "flags": torch.tensor([True, row == 1]),
        "nested": {"list": [row, "x"]},
    } | media(row)


def encoded(row, kind):
    file = io.BytesIO()
    image(row).save(file, format=kind)
    return file.getvalue()


def media(row):
    """Values that the library stores as the bytes of a file. Only it knows their kinds, so most need not be real files."""
    return {
        "text": Text(text="ßé" * row), "text_file": Text(bytes=b"text %d" % row), "image": ImageRef(bytes=encoded(row, "PNG")),
        "image_array": ImageRef(array=np.full((2, 3), row, np.uint8), format="BMP"), "image_path": files(row, "webp"),
        "jpeg_file": Jpeg(bytes=encoded(row, "JPEG")), "jpeg_files": JpegArray(images=[Jpeg(bytes=encoded(row, "JPEG"))] * (row + 1)),
        "pil_array": Pil(array=np.full((2, row + 1), row, np.uint8)), "file": File(bytes=b"file %d" % row),
        "file_path": File(path=files(row, "bin")), "video": Video(bytes=b"video %d" % row), "video_path": Video(path=files(row, "webm")),
        "audio": Audio(bytes=b"audio %d" % row), "audio_path": Audio(path=files(row, "flac")), "tifffile": files(row, "tiff"),
        "nifti": Nifti(bytes=b"nifti %d" % row), "nifti_path": files(row, "nii.gz"), "mesh": Mesh(path=files(row, "ply")),
        "pdf": Pdf(bytes=b"%%PDF %d" % row), "array": Tensor(array=np.full((row + 1, 2), row, np.int16)),
        "array_file": Tensor(bytes=bytes(4 * row + 4), dtype=torch.int32),
    }  # fmt: skip


FOLDER = Path(tempfile.mkdtemp())


def files(row, extension):
    """Writes a file, and returns its path."""
    file = FOLDER / f"{row}.{extension}"
    file.write_bytes(encoded(row, extension) if extension in ("webp", "tiff") else f"{extension} {row}".encode())
    return str(file)


def stored():
    """The serializers of the library that return the bytes of a file, not its content."""
    tiff = serializers.TIFFSerializer()
    tiff.deserialize = bytes
    return {
        "video": serializers.VideoSerializer(decode="bytes"), "audio": serializers.AudioSerializer(decode="bytes"),
        "nifti": serializers.NiftiSerializer(decode=False), "mesh": serializers.MeshSerializer(decode=False),
        "pdf": serializers.PDFSerializer(decode=False), "tifffile": tiff,
    }  # fmt: skip


def plain(value):
    if isinstance(value, Image.Image):
        return value.tobytes().hex()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    return value


def read(folder, names, **settings):
    """Returns the items that the library reads. Encoded images are replaced by the SHA-256 of their bytes."""
    decode = serializers._decode_image_tensor
    serializers._decode_image_tensor = lambda data: hashlib.sha256(bytes(data)).hexdigest()
    try:
        # The library replaces compressed chunks by decompressed ones.
        copy = Path(tempfile.mkdtemp()) / "copy"
        dataset = StreamingDataset(str(shutil.copytree(folder, copy)), **settings)
        return [names(dataset[row]) for row in range(len(dataset))]
    finally:
        serializers._decode_image_tensor = decode


def flat(item, prefix=""):
    """The values of an item with the names of Feedline's columns."""
    values = {}
    for key, value in item.items() if isinstance(item, dict) else enumerate(item):
        name = f"{prefix}{key}"
        if isinstance(value, dict) or isinstance(value, list) and name not in ("jpeg_array", "jpeg_files"):
            values |= flat(value, name + ".")
        else:
            values[name] = plain(value)
    return values


def write(name, items, **settings):
    folder = HERE / name
    loader = settings.pop("item_loader", None)
    cache = Cache(str(folder), item_loader=loader, **settings)
    for row, item in enumerate(items):
        cache[row] = item
    cache.done()
    cache.merge()
    return folder


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    expected = {}
    expected["every"] = read(write("every", [every(row) for row in range(3)], chunk_size=2), flat, serializers=stored())
    small = [(row, f"row {row} " * (row % 7), torch.full((row % 3 + 1, 1), row, dtype=torch.int16)) for row in range(40)]
    for name, settings in {
        "plain": {},
        "chunk": {"compression": "zstd", "compression_level": "chunk"},
        "batch": {"compression": "zstd", "compression_batch_size": 7},
        "sample": {"compression": "zstd", "compression_level": "sample"},
    }.items():
        rows = read(write(name, small, chunk_size=25, **settings), flat)
        assert expected.setdefault("small", rows) == rows
    tokens = [torch.arange(row, row + 4 + row % 3, dtype=torch.int32) for row in range(20)]
    folder = write("tokens", tokens, chunk_bytes=200, item_loader=TokensLoader())
    expected["tokens"] = [{"0": token.tolist()} for token in tokens]
    blocks = [block.tolist() for block in StreamingDataset(str(folder), item_loader=TokensLoader(block_size=1))]
    assert sum(blocks, []) == sum((token["0"] for token in expected["tokens"]), [])
    write("pickled", [{"id": 1, "object": {1, 2}}], chunk_size=2)
    rows = [{"id": row, "text": "ß" * row, "score": row / 4} for row in range(30)]
    expected["arrow"] = read(write("arrow", rows, chunk_size=20), flat)
    # The library writes the name `tiff`, and reads only the name `tifffile`.
    rows = [{"id": row, "tiff": Tiff(bytes=encoded(row, "TIFF"))} for row in range(3)]
    write("tiff", rows, chunk_size=2)
    expected["tiff"] = [{"id": row["id"], "tiff": row["tiff"].bytes.hex()} for row in rows]
    (HERE / "expected.json").write_text(json.dumps(expected))


main()
