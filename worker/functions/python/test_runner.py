"""Tests the runner without a worker: inputs and results of functions."""

import os

import numpy as np
import pytest

import feedline_runner as runner


@pytest.fixture
def results():
    return runner.Results(os.memfd_create("results"))


def region_of(*buffers):
    """Returns aligned buffers as the worker writes them, and their offsets."""
    data, places = b"", []
    for buffer in buffers:
        data += bytes(-len(data) % 64)
        places.append(len(data))
        data += buffer.tobytes() if isinstance(buffer, np.ndarray) else buffer
    return bytearray(data), places


def test_numbers_are_views_of_the_requested_rows():
    region, [at] = region_of(np.arange(12, dtype=np.int32))
    column = {"kind": "number", "dtype": "int32", "shape": [2], "at": at}
    array = runner.read_column(region, column, 2, 5)
    assert array.tolist() == [[4, 5], [6, 7], [8, 9]]
    assert array.base is not None


def test_texts_lists_and_nulls():
    offsets, text = np.array([0, 2, 2, 5], np.int64), "abüx".encode()
    region, [at, data, valid, items] = region_of(offsets, text, np.array([1, 0, 1], np.uint8), np.arange(5.0))
    column = {"kind": "text", "offsets": at, "data": data, "valid": valid}
    assert runner.read_column(region, column, 0, 3).tolist() == ["ab", None, "üx"]
    column = {"kind": "bytes", "offsets": at, "data": data, "valid": None}
    assert runner.read_column(region, column, 1, 3).tolist() == [b"", "üx".encode()]
    inner = {"kind": "number", "dtype": "float64", "shape": [], "at": items}
    rows = runner.read_column(region, {"kind": "list", "offsets": at, "items": inner}, 0, 3)
    assert [row.tolist() for row in rows] == [[0, 1], [], [2, 3, 4]]


@pytest.mark.parametrize(
    "values, shape, expected",
    [
        (np.zeros(3), [], "`y` is float64, but int32 is declared"),
        (np.zeros(2, np.int32), [], "`y` has 2 rows, but the function received 3"),
        (np.zeros((3, 2), np.int32), [], "`y` has [2] per row, but a single number per row is declared"),
        (np.zeros(3, np.int32), [4], "`y` has a single number per row, but [4] per row is declared"),
        (7, [], "`y` has a single number for all rows, but a single number per row is declared"),
        ([1.5, 2, 3], [], "`y` contains fractions, but int32 is declared"),
        (["a", "b", "c"], [], "`y` contains text, but int32 is declared"),
        (["1", "2", "3"], [], "`y` contains text, but int32 is declared"),
        ([1, 2, None], [], "`y` contains None, but int32 is declared"),
        ([np.int64(1), np.int64(1 << 40), 3], [], "`y` contains 1099511627776, which int32 does not represent"),
        ([np.array([1, 2]), np.array([3, 1 << 31]), [5, 6]], [2], "`y` contains 2147483648, which int32 does not represent"),
        ([1, 2, 1 << 70], [], "cannot convert `y` to an array of int32"),
        ([1, [2], 3], [], "cannot convert `y` to an array of int32"),
        (np.ma.masked_array([1, 2, 3], [0, 1, 0], dtype=np.int32), [], "`y` is a masked array with missing values"),
        ([np.ma.masked_array([1, 2], [0, 1], dtype=np.int32)] * 3, [2], "`y` contains a masked array with missing values"),
        (np.array([1, None, 3], object), [], "`y` contains None, but int32 is declared"),
    ],
)
def test_invalid_arrays_are_rejected_with_a_message(results, values, shape, expected):
    with pytest.raises(runner.InvalidResult) as raised:
        results.write("y", {"dtype": "int32", "shape": shape}, values, 3)
    assert expected in str(raised.value)


def test_arrays_and_lists_are_written_as_declared(results):
    results.clear()
    for values in (np.arange(3, dtype=np.int16), [0, 1, 2], np.array([0, 1, 2], object)):
        place = results.write("y", {"dtype": "int32", "shape": []}, values, 3)
        written = np.frombuffer(results._region, np.int32, 3, place["at"])
        assert written.tolist() == [0, 1, 2] and place["at"] % 64 == 0
    place = results.write("t", {"dtype": "text", "shape": [], "list": True}, [["a", "bc"], []], 2)
    assert np.frombuffer(results._region, np.int64, 3, place["offsets"]).tolist() == [0, 2, 2]
    with pytest.raises(runner.InvalidResult, match="`t` contains None, but text is declared"):
        results.write("t", {"dtype": "text", "shape": []}, ["a", None], 2)


@pytest.mark.parametrize(
    "values, dtype, lost",
    [
        ([np.int64(-1)], "uint8", "-1"),
        ([np.uint64(1 << 63)], "int64", str(1 << 63)),
        ([np.int64(-1)], "uint64", "-1"),
        ([2], "bool", "2"),
        ([(1 << 24) + 1], "float32", str((1 << 24) + 1)),
        ([(1 << 53) + 1], "float64", str((1 << 53) + 1)),
        ([1e39], "float32", "1e+39"),
        ([70_000], "float16", "70000"),
        ([np.float64(0.1), 2.5, float("inf"), float("nan")], "float32", None),
        ([True, False], "bool", None),
        ([0, 1], "bool", None),
        ([np.uint8(255), 3], "int16", None),
        ([], "int16", None),
        ([-1], "float16", None),
    ],
)
def test_numbers_of_lists_are_not_changed(values, dtype, lost):
    dtype = np.dtype(dtype)
    if lost is None:
        array = runner.to_array("y", values, dtype, (len(values),))
        expected = np.asarray(values, dtype)
        assert array.dtype == dtype and np.array_equal(array, expected, equal_nan=dtype.kind == "f")
        return
    with pytest.raises(runner.InvalidResult, match="`y` contains .*, which .* does not represent") as raised:
        runner.to_array("y", values, dtype, (len(values),))
    assert f"contains {lost}," in str(raised.value)


def test_a_requirement_matches_more_specific_versions():
    assert runner.matches("2.4", "2.4.6") and runner.matches("2", "2.4.6") and runner.matches("2.4.6", "2.4.6")
    assert not runner.matches("2.4", "2.40.1") and not runner.matches("2.4.6.1", "2.4.6")


def test_a_reason_contains_lines_of_the_user_and_not_of_the_runner():
    def inner():
        raise KeyError("x")

    def outer():
        inner()

    with pytest.raises(KeyError) as raised:
        outer()
    reason = runner.reason_of(raised.value)
    assert reason.startswith("KeyError: 'x' (at test_runner.py line") and "in inner" in reason and "in outer" in reason


def test_generators_depend_only_on_the_seed():
    seeds = np.array([1, 2, 1], np.uint64)
    drawn = [int(rng.integers(1 << 40)) for rng in runner.Generators(seeds)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_seed_keywords_follow_the_signature():
    assert runner.seed_keywords(lambda batch, seeds: None) == ["seeds"]
    assert runner.seed_keywords(lambda batch, **more: None) == ["seeds", "rngs"]
    with pytest.raises(runner.LoadError, match="has neither"):
        runner.seed_keywords(lambda batch: None)
