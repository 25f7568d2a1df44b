"""Lists in large Parquet row groups without a page index, as pyarrow writes them: rows continue in the next page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 6000


def lists(values: Any, random: np.random.Generator, count: int, mean: int) -> Any:
    """Returns `count` lists of `values`, some of which are null, empty, or longer than several pages."""
    lengths = random.integers(0, 2 * mean, count)
    lengths[random.random(count) < 0.1] = 0
    lengths[[17, count // 2]] = 40 * mean
    offsets = np.cumsum([0, *lengths])
    scale = len(values) / offsets[-1]
    offsets = np.minimum((offsets * min(scale, 1)).astype(np.int32), len(values))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(random.random(count) < 0.05))


def columns(random: np.random.Generator) -> dict[str, Any]:
    numbers = pa.array(random.integers(-(2**31), 2**31, ROWS * 1000, dtype=np.int32), mask=random.random(ROWS * 1000) < 0.001)
    words = pa.array([f"word {number}" for number in random.integers(0, 500, 20 * ROWS)])
    inner = lists(numbers.slice(0, 300 * ROWS), random, 20 * ROWS, 15)
    flat = pa.array(random.integers(0, 2**62, ROWS))
    return {
        "id": pa.array(range(ROWS)),
        "numbers": lists(numbers, random, ROWS, 1000),
        "words": lists(words, random, ROWS, 20),
        "nested": lists(inner, random, ROWS, 20),
        "s": pa.StructArray.from_arrays([flat, lists(numbers.slice(0, 50 * ROWS), random, ROWS, 50)], ["flat", "list"]),
    }


def plain(value: Any) -> Any:
    """Converts a delivered value to lists, in which missing values are None."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.dtype == object else value.tolist()
    return value


@pytest.mark.parametrize(
    ("compression", "version", "dictionary", "page_bytes"),
    [("none", "1.0", False, 64 << 10), ("snappy", "1.0", True, 16 << 10), ("gzip", "1.0", ["words"], 1 << 20), ("zstd", "2.0", True, 64 << 10)],
)
def test_rows_that_continue_in_the_next_page(
    tmp_path: Path, local: dict[str, Any], compression: str, version: str, dictionary: Any, page_bytes: int
) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table(columns(np.random.default_rng(page_bytes)))
    options = {"data_page_version": version, "use_dictionary": dictionary, "data_page_size": page_bytes}
    pq.write_table(table, file, row_group_size=ROWS, compression=compression, write_batch_size=100, **options)
    for names in [["id", "numbers", "words", "nested", "s.flat", "s.list"], ["id", "words"]]:
        expected = {name: table.flatten()[name].to_pylist() for name in names}
        found: dict[str, list[Any]] = {name: [] for name in names}
        with feedline.read(url=file, format="parquet").select(names).batch(500).open(epochs=1, **local) as job:
            for batch in job:
                for name in names:
                    found[name] += [plain(value) for value in batch[name]]
        order = np.argsort(found["id"])
        assert len(order) == ROWS
        for name in names:
            differing = [at for at in range(ROWS) if found[name][order[at]] != expected[name][at]]
            assert not differing, f"{name}: {len(differing)} rows differ, the first one is {differing[0]}"
