"""Columns of random types with random nulls, from Parquet and Arrow files to NumPy, compared with pyarrow."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

_ROWS = 40
_NUMBERS = {
    name: pa.bool_() if name == "bool" else getattr(pa, name)()
    for name in ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
}
_BYTES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.dictionary(pa.int32(), pa.string())]


class RandomTable:
    """Generates columns. A value is null with probability `nulls`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nulls = self.random.choice([0.0, 0.0, 0.1, 0.4])

    def number_type(self) -> Any:
        return self.random.choice(list(_NUMBERS.values()))

    def type(self, depth: int = 2) -> Any:
        """Returns a type that Feedline accepts."""
        kind = self.random.choice(["number", "bytes", "vector", "vector", "list", "large_list", "fixed", "tensor"][: 8 if depth else 3])
        inner = self.type(depth - 1) if kind in ("list", "large_list", "fixed") else None
        match kind:
            case "number":
                return self.number_type()
            case "bytes":
                return self.random.choice(_BYTES)
            case "vector":
                return pa.list_(self.number_type(), self.random.randint(1, 9))
            case "list":
                return pa.list_(inner)
            case "large_list":
                return pa.large_list(inner)
            case "fixed":
                return pa.list_(inner, self.random.randint(1, 3))
        return pa.fixed_shape_tensor(self.number_type(), [self.random.randint(1, 3) for _ in range(self.random.randint(1, 3))])

    def array(self, data_type: Any, count: int) -> Any:
        """Returns an array, which is a slice of a longer array."""
        before, after = self.random.randint(0, 9), self.random.randint(0, 9)
        return self._whole(data_type, before + count + after).slice(before, count)

    def _whole(self, data_type: Any, count: int) -> Any:
        if isinstance(data_type, pa.FixedShapeTensorType):
            return pa.ExtensionArray.from_storage(data_type, self._whole(data_type.storage_type, count))
        if pa.types.is_fixed_size_list(data_type):
            values = self.array(data_type.value_type, count * data_type.list_size)
            return pa.FixedSizeListArray.from_arrays(values, type=data_type, mask=self._mask(count))
        if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            lengths = [self.random.choice([0, 1, 2, 5]) for _ in range(count)]
            offsets = np.cumsum([0, *lengths])
            kind = pa.LargeListArray if pa.types.is_large_list(data_type) else pa.ListArray
            offset_type = pa.int64() if pa.types.is_large_list(data_type) else pa.int32()
            values = self.array(data_type.value_type, int(offsets[-1]))
            # A null list may have elements.
            return kind.from_arrays(pa.array(offsets, offset_type), values, type=data_type, mask=self._mask(count))
        if pa.types.is_struct(data_type):
            fields = list(data_type)
            return pa.StructArray.from_arrays([self.array(field.type, count) for field in fields], fields=fields, mask=self._mask(count))
        values = [None if self.random.random() < self.nulls else self._value(data_type) for _ in range(count)]
        return pa.array(values, data_type)

    def _mask(self, count: int) -> Any:
        if self.nulls == 0:
            return None
        return pa.array([self.random.random() < self.nulls / 3 for _ in range(count)], pa.bool_())

    def _value(self, data_type: Any) -> Any:
        if data_type == pa.bool_():
            return self.random.random() < 0.5
        if pa.types.is_dictionary(data_type):
            return self.random.choice(["red", "green", "a longer color"])
        if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
            return "é" * self.random.randint(0, 20)
        if pa.types.is_fixed_size_binary(data_type):
            return self.random.randbytes(3)
        if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
            return self.random.randbytes(self.random.randint(0, 20))
        dtype = np.dtype(data_type.to_pandas_dtype())
        if dtype.kind == "f":
            return dtype.type(self.random.uniform(-1000, 1000))
        info = np.iinfo(dtype)
        return self.random.choice([int(info.min), int(info.max), self.random.randint(int(info.min), int(info.max))])


def is_tensor(data_type: Any) -> bool:
    """Whether a column of this type is a tensor column."""
    if isinstance(data_type, pa.FixedShapeTensorType):
        return True
    return pa.types.is_fixed_size_list(data_type) and data_type.value_type in _NUMBERS.values()


def shape_of(data_type: Any) -> list[int]:
    return list(data_type.shape) if isinstance(data_type, pa.FixedShapeTensorType) else [data_type.list_size]


def has_null(value: Any) -> bool:
    return value is None or isinstance(value, list) and any(map(has_null, value))


def plain(value: Any) -> Any:
    """Converts a delivered value to lists, in which missing values are None."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.dtype == object else value.tolist()
    return value


def expected(data_type: Any, value: Any) -> Any:
    """Converts a value of pyarrow to lists with the shape of a tensor."""
    if value is None:
        return None
    if is_tensor(data_type):
        return np.array(value, object).reshape(shape_of(data_type)).tolist()
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return [expected(data_type.value_type, item) for item in value]
    return float(value) if isinstance(value, np.floating) else value


def expected_null_tensors(data_type: Any, value: Any) -> Any:
    """Replaces null tensors in lists with tensors of nulls, which is how masked arrays show them."""
    if value is None and is_tensor(data_type):
        return np.full(shape_of(data_type), None, object).tolist()
    if isinstance(value, list) and not is_tensor(data_type):
        return [expected_null_tensors(data_type.value_type, item) for item in value]
    return value


def columns_of(table: Any) -> dict[str, tuple[Any, list[Any]]]:
    """The columns that Feedline delivers, with the fields of structs as columns."""
    columns: dict[str, tuple[Any, list[Any]]] = {}

    def add(name: str, data_type: Any, values: list[Any]) -> None:
        if pa.types.is_struct(data_type):
            for field in data_type:
                add(f"{name}.{field.name}", field.type, [None if value is None else value[field.name] for value in values])
        else:
            columns[name] = data_type, values

    for field in table.schema:
        add(field.name, field.type, table[field.name].to_pylist())
    return columns


def write(table: Any, path: Path, file_format: str, chosen: random.Random) -> None:
    rows = chosen.randint(1, _ROWS)
    if file_format == "parquet":
        pq.write_table(table, path, row_group_size=rows, use_dictionary=chosen.random() < 0.5, store_schema=True)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for start in range(0, _ROWS, rows):
            writer.write_table(table.slice(start, rows))


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_columns_equal_those_of_pyarrow(file_format: str, seed: int, tmp_path: Path, local: dict[str, Any]) -> None:
    made = RandomTable(seed)
    types = [made.type() for _ in range(5)]
    types.append(pa.struct([("a", made.type(1)), ("b", pa.struct([("c", made.type(1))]))]))
    table = pa.table({f"x{number}": made.array(data_type, _ROWS) for number, data_type in enumerate(types)})
    path = tmp_path / f"data.{file_format}"
    try:
        write(table, path, file_format, made.random)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        pytest.skip(f"pyarrow cannot write the file: {error}")
    columns = columns_of(table)
    incomplete = [
        any(is_tensor(data_type) and has_null(values[row]) for data_type, values in columns.values()) for row in range(_ROWS)
    ]
    pipeline = feedline.read(url=path, format=file_format, on_error="skip").batch(made.random.randint(1, 9))
    if all(incomplete):
        with pytest.raises(feedline.JobFailed, match="cannot represent"), pipeline.open(**local, epochs=1) as job:
            list(job)
        return
    wanted = {
        name: [
            expected_null_tensors(data_type, expected(data_type, value)) if not is_tensor(data_type) else expected(data_type, value)
            for value, skip in zip(values, incomplete, strict=True)
            if not skip
        ]
        for name, (data_type, values) in columns.items()
    }
    found: dict[str, list[Any]] = {name: [] for name in columns}
    skipped = 0
    with pipeline.open(**local, epochs=1) as job:
        for batch in job:
            assert set(batch) == set(columns)
            skipped += len(batch.skipped)
            for name, (data_type, _) in columns.items():
                array = batch[name]
                found[name].extend(plain(array))
                if is_tensor(data_type):
                    value_type = data_type.value_type
                    assert type(array) is np.ndarray and array.dtype == value_type.to_pandas_dtype(), name
                    assert list(array.shape[1:]) == shape_of(data_type), name
                elif data_type in _NUMBERS.values():
                    assert array.dtype == data_type.to_pandas_dtype(), name
    for name in columns:
        assert found[name] == wanted[name], f"{name}: {columns[name][0]}"
    # The rows that are skipped after the last batch belong to no batch.
    assert skipped <= sum(incomplete)


def test_a_null_in_a_vector_names_the_column_the_file_and_the_row(tmp_path: Path, local: dict[str, Any]) -> None:
    path = tmp_path / "v.parquet"
    vectors = pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int16(), 2))
    pq.write_table(pa.table({"id": range(4), "v": vectors}), path)
    data = feedline.read(url=path, format="parquet")
    with pytest.raises(feedline.FeedlineError, match=r"v\.parquet, row 1 .*column `v` is null.*on_error: skip"), data.batch(4).open(
        **local, epochs=1
    ) as job:
        list(job)
    for where, ids in [("v IS NOT NULL", [0, 3]), ("v IS NULL OR id = 3", [3])]:
        kept = feedline.read(url=path, format="parquet", on_error="skip").filter(where).batch(4)
        with kept.open(**local, epochs=1) as job:
            assert [row for batch in job for row in batch["id"].tolist()] == ids
    with data.select(["id"]).batch(4).open(**local, epochs=1) as job:
        assert [row for batch in job for row in batch["id"].tolist()] == [0, 1, 2, 3], "a column that is not delivered may have nulls"


def test_a_tensor_with_a_permutation_is_refused(tmp_path: Path, local: dict[str, Any]) -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0]), pa.array([range(6)], pa.list_(pa.int8(), 6))
    )
    pq.write_table(pa.table({"t": tensors}), tmp_path / "t.parquet")
    with pytest.raises(feedline.FeedlineError, match=r"column `t`: tensors with the permutation \[1, 0\] are not supported"):
        with feedline.read(url=tmp_path / "t.parquet", format="parquet").batch(1).open(**local) as job:
            next(iter(job))


@pytest.mark.parametrize("last", ["bucket_by_length", "pack"])
def test_nulls_in_lists_are_not_padding(last: str, tmp_path: Path, local: dict[str, Any]) -> None:
    lists = pa.array([[1, 2], [3, None], None, [4]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": lists}), tmp_path / "l.parquet")

    def batches(on_error: str) -> Any:
        data = feedline.read(url=tmp_path / "l.parquet", format="parquet", on_error=on_error)
        data = data.bucket_by_length(["tokens"], boundaries=[2], tokens=8) if last == "bucket_by_length" else data.pack(["tokens"], 4, 2)
        with data.open(**local, epochs=1) as job:
            return [(batch["tokens"], list(batch.skipped)) for batch in job]

    with pytest.raises(feedline.FeedlineError, match=r"row [12] .*column `tokens` (is null|contains a null element)"):
        batches("fail")
    delivered = batches("skip")
    numbers = sorted(number for tokens, _ in delivered for number in np.asarray(tokens).ravel().tolist() if number)
    assert numbers == [1, 2, 4]
    reasons = sorted(reason for _, skipped in delivered for _, _, reason in skipped)
    assert reasons == ["column `tokens` contains a null element", "column `tokens` is null"]


def test_operators_accept_the_arrays_of_numpy_files(tmp_path: Path, local: dict[str, Any]) -> None:
    generator = np.random.default_rng(5)
    images = generator.integers(0, 256, (7, 4, 6, 3), np.uint8)
    masks = generator.random((7, 5)) < 0.5
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "masks.npy", masks)

    def delivered(pipeline: feedline.Pipeline) -> Any:
        with pipeline.batch(3).open(**local, epochs=1) as job:
            return np.concatenate([batch["data"] for batch in job])

    data = feedline.read(url=tmp_path / "images.npy", format="npy")
    assert (delivered(data.random_horizontal_flip("data", p=1)) == images[:, :, ::-1]).all()
    assert (delivered(data.center_crop("data", [2, 2])) == images[:, 1:3, 2:4]).all()
    assert (delivered(data.cast("data", "float64")) == images).all()
    normalized = delivered(data.normalize("data", [0.5], [0.25], layout="chw"))
    assert np.allclose(normalized, ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2), atol=1e-5)
    gray = delivered(data.random_grayscale("data", p=1))
    assert (gray == gray[..., :1]).all() and gray.shape == images.shape
    found = delivered(feedline.read(url=tmp_path / "masks.npy", format="npy"))
    assert found.dtype == bool and (found == masks).all()
