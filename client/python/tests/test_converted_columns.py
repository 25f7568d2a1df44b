"""Types of Parquet and Arrow files that NumPy does not have, with random values and nulls, compared with pyarrow."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

_ROWS = 50
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400


class Converted:
    """Generates columns of types that are converted."""

    def __init__(self, seed: int, file_format: str) -> None:
        self.random = random.Random(seed)
        self.nulls = self.random.choice([0.0, 0.1, 0.4])
        self.is_arrow = file_format == "arrow"

    def scalar_type(self) -> Any:
        unit = self.random.choice(list(_PER_SECOND))
        types = [
            pa.date32(),
            pa.date64(),
            pa.timestamp(unit),
            pa.timestamp(unit, "Europe/Berlin"),
            pa.time32(self.random.choice(["s", "ms"])),
            pa.time64(self.random.choice(["us", "ns"])),
            pa.duration(unit),
            pa.decimal128(self.random.randint(1, 18), 0),
            pa.decimal128(self.random.randint(5, 15), self.random.randint(1, 5)),
            pa.decimal256(self.random.randint(5, 15), self.random.randint(0, 5)),
        ]
        if self.is_arrow:
            types += [pa.string_view(), pa.binary_view()]
        return self.random.choice(types)

    def type(self) -> Any:
        scalar = self.scalar_type
        match self.random.choice(["scalar", "scalar", "list", "fixed", "struct", "structs", "map", "runs"]):
            case "list":
                return pa.list_(pa.list_(scalar()))
            case "fixed":
                return pa.list_(scalar(), self.random.randint(1, 3))
            case "struct":
                return pa.struct([("a", scalar()), ("b", pa.list_(scalar()))])
            case "structs":
                return pa.list_(pa.struct([("a", scalar()), ("b", pa.struct([("c", scalar())]))]))
            case "map":
                return pa.map_(pa.string(), scalar())
            case "runs" if self.is_arrow:
                return pa.run_end_encoded(pa.int32(), self.random.choice([pa.int64(), pa.string(), pa.float32()]))
        return scalar()

    def value(self, data_type: Any, nullable: bool = True) -> Any:
        """Returns a value for `pyarrow.array`."""
        # Lists of a fixed length are tensors, which cannot represent nulls.
        is_fixed = pa.types.is_fixed_size_list(data_type)
        if nullable and not is_fixed and self.random.random() < self.nulls:
            return None
        if pa.types.is_map(data_type):
            return [(f"key {key}", self.value(data_type.item_type)) for key in range(self.random.randint(0, 3))]
        if is_fixed:
            return [self.value(data_type.value_type, nullable=False) for _ in range(data_type.list_size)]
        if pa.types.is_list(data_type):
            return [self.value(data_type.value_type) for _ in range(self.random.randint(0, 4))]
        if pa.types.is_struct(data_type):
            return {field.name: self.value(field.type) for field in data_type}
        if pa.types.is_decimal(data_type):
            return Decimal(self.random.randint(1 - 10**data_type.precision, 10**data_type.precision - 1)).scaleb(-data_type.scale)
        if pa.types.is_time(data_type):
            return self.random.randrange(_DAY_SECONDS * _PER_SECOND[data_type.unit])
        if pa.types.is_date(data_type):
            return self.random.randint(-200_000, 200_000) * (1 if data_type == pa.date32() else _DAY_SECONDS * 1000)
        if pa.types.is_temporal(data_type):
            return self.random.randint(-(2**32), 2**32) * _PER_SECOND[data_type.unit] + self.random.randrange(_PER_SECOND[data_type.unit])
        if data_type == pa.binary_view():
            return self.random.randbytes(self.random.randint(0, 30))
        return "ü" * self.random.randint(0, 20)

    def array(self, data_type: Any) -> Any:
        """Returns an array, which is a slice of a longer array."""
        before, after = self.random.randint(0, 9), self.random.randint(0, 9)
        count = before + _ROWS + after
        if isinstance(data_type, pa.RunEndEncodedType):
            ends = sorted({*self.random.sample(range(1, count), 9), count})
            values = [self.random.randint(0, 99) for _ in ends]
            values = pa.array([None if self.random.random() < self.nulls else value for value in values]).cast(data_type.value_type)
            whole = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)
        else:
            whole = pa.array([self.value(data_type) for _ in range(count)], data_type)
        return whole.slice(before, _ROWS)


def converted(scalar: Any) -> Any:
    """Converts a scalar of pyarrow as the documentation says."""
    if not scalar.is_valid:
        return None
    data_type = scalar.type
    if isinstance(data_type, pa.RunEndEncodedType):
        return scalar.as_py()
    if pa.types.is_list(data_type) or pa.types.is_map(data_type) or pa.types.is_fixed_size_list(data_type):
        return [converted(item) for item in scalar.values]
    if pa.types.is_struct(data_type):
        return {field.name: converted(scalar[field.name]) for field in data_type}
    if pa.types.is_decimal(data_type):
        return float(scalar.as_py()) if data_type.scale else int(scalar.as_py())
    if pa.types.is_date(data_type):
        return scalar.value // (1 if data_type == pa.date32() else _DAY_SECONDS * 1000)
    if pa.types.is_temporal(data_type):
        return scalar.value * 10**6 // _PER_SECOND[data_type.unit]
    return scalar.as_py()


def columns_of(name: str, data_type: Any, values: list[Any]) -> dict[str, list[Any]]:
    """The columns of a field: those of the fields of structs, also in lists."""
    if isinstance(data_type, pa.RunEndEncodedType):
        return {name: values}
    if pa.types.is_struct(data_type):
        found: dict[str, list[Any]] = {}
        for field in data_type:
            items = [None if value is None else value[field.name] for value in values]
            found |= columns_of(f"{name}.{field.name}", field.type, items)
        return found
    is_map = pa.types.is_map(data_type)
    if is_map or pa.types.is_list(data_type) and pa.types.is_struct(data_type.value_type):
        entry = pa.struct([("key", pa.string()), ("value", data_type.item_type)]) if is_map else data_type.value_type
        inner = columns_of(name, entry, [item for value in values for item in value or []])
        found = {}
        for column, items in inner.items():
            rest = iter(items)
            found[column] = [None if value is None else [next(rest) for _ in value] for value in values]
        return found
    return {name: values}


def plain(value: Any) -> Any:
    """Converts a delivered value to lists, in which missing values are None."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.dtype == object else value.tolist()
    return value


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_converted_values_equal_those_of_pyarrow(file_format: str, seed: int, tmp_path: Path, local: dict[str, Any]) -> None:
    made = Converted(seed, file_format)
    table = pa.table({f"x{number}": made.array(made.type()) for number in range(6)})
    path = tmp_path / f"data.{file_format}"
    rows = made.random.randint(1, _ROWS)
    if file_format == "parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        options = pa.ipc.IpcWriteOptions(compression=made.random.choice([None, "lz4", "zstd"]))
        new = made.random.choice([pa.ipc.new_file, pa.ipc.new_stream])
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)
    wanted: dict[str, list[Any]] = {}
    for field in table.schema:
        wanted |= columns_of(field.name, field.type, [converted(value) for value in table[field.name]])
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    with feedline.read(url=path, format=file_format).batch(7).open(**local, epochs=1) as job:
        for batch in job:
            assert set(batch) == set(wanted)
            for name in wanted:
                found[name].extend(plain(batch[name]))
    for name, values in wanted.items():
        assert found[name] == values, f"{name}: {table.schema}"
