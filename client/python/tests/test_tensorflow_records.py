"""TFRecord files that TensorFlow writes, plain and compressed, compared with the rows that TensorFlow reads."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("tensorflow is not installed", allow_module_level=True)

_ROWS = 300


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow, which is not imported by processes that run no test of this module: its import takes seconds."""
    return pytest.importorskip("tensorflow")


def write(tf: Any, file: Path, compression: str | None, level: int | None) -> None:
    """Writes records of about 3 MB, in which some features have one value and others a list."""
    random_values = random.Random(5)

    def floats(count: int) -> Any:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[random_values.uniform(-9, 9) for _ in range(count)]))

    def ints(values: list[int]) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def texts(values: list[bytes]) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    with tf.io.TFRecordWriter(str(file), tf.io.TFRecordOptions(compression_type=compression, compression_level=level)) as writer:
        for row in range(_ROWS):
            noise = random_values.randbytes(random_values.randrange(10_000))
            features = {
                "id": ints([row]),
                "hash": ints([random_values.randrange(-(2**63), 2**63)]),
                "tokens": ints([random_values.randrange(50_000) for _ in range(row % 40)]),
                "score": floats(1),
                "box": floats(row % 5),
                "image": texts([noise + bytes(row * 30)]),
                "words": texts([noise[at : at + 7] for at in range(row % 4)]),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def tensorflow_rows(tf: Any, file: Path, compression: str | None) -> list[dict[str, list[Any]]]:
    """Returns the values of each feature in each record."""
    rows = []
    for record in tf.data.TFRecordDataset(str(file), compression_type=compression or ""):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        rows.append({name: list(getattr(feature, feature.WhichOneof("kind")).value) for name, feature in features.items()})
    return rows


def feedline_rows(file: Path, local: dict[str, Any], on_error: str = "fail") -> list[dict[str, list[Any]]]:
    """Returns the values of each column in each row."""
    rows: list[dict[str, list[Any]]] = []
    with feedline.read(url=file, format="tfrecord", on_error=on_error).batch(70).open(epochs=1, **local) as job:
        for batch in job:
            columns = {name: [to_list(value) for value in column] for name, column in batch.items()}
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


def to_list(value: Any) -> list[Any]:
    """Converts a value, or the array of a list, to a list of Python values."""
    return list(value.tolist()) if isinstance(value, np.ndarray) else [value.item() if isinstance(value, np.generic) else value]


@pytest.mark.parametrize(
    ("compression", "level"),
    [
        (None, None),
        *[("GZIP", level) for level in (None, 0, 1, 6, 9)],
        *[("ZLIB", level) for level in (None, 0, 1, 6, 9)],
    ],
)
def test_files_have_the_rows_that_tensorflow_reads(
    tf: Any, tmp_path: Path, local: dict[str, Any], compression: str | None, level: int | None
) -> None:
    file = tmp_path / "a.tfrecord"
    write(tf, file, compression, level)
    expected = tensorflow_rows(tf, file, compression)
    assert [row["id"] for row in expected] == [[row] for row in range(_ROWS)]
    # A comparison of all rows would print megabytes.
    for row, wanted in zip(feedline_rows(file, local), expected, strict=True):
        assert row == wanted


def test_a_truncated_file_is_an_error_with_its_name(tf: Any, tmp_path: Path, local: dict[str, Any]) -> None:
    file = tmp_path / "half.tfrecord.gz"
    write(tf, file, "GZIP", None)
    expected = tensorflow_rows(tf, file, "GZIP")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(feedline.JobFailed, match=r"(?s)half\.tfrecord\.gz.*truncated"):
        feedline_rows(file, local)
    rows = feedline_rows(file, local, on_error="skip")
    assert 0 < len(rows) < _ROWS
    assert [row["id"] for row in rows] == [row["id"] for row in expected[: len(rows)]]
