"""Tests of the runner without a worker: what a function is given and may return."""

import os

import numpy as np
import pytest

import feedline_runner as runner


@pytest.fixture
def results():
    return runner.Results(os.memfd_create("results"))


def region_of(*buffers):
    """Buffers behind each other, as the worker aligns them, and where each lies."""
    data, places = b"", []
    for buffer in buffers:
        data += bytes(-len(data) % 64)
        places.append(len(data))
        data += buffer.tobytes() if isinstance(buffer, np.ndarray) else buffer
    return bytearray(data), places


def test_numbers_are_views_of_the_rows_asked_for():
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
    "values, shape, said",
    [
        (np.zeros(3), [], "`y` is float64, but int32 is declared"),
        (np.zeros(2, np.int32), [], "`y` has 2 rows, but the function was given 3"),
        (np.zeros((3, 2), np.int32), [], "`y` has [2] per row, but a single number per row is declared"),
        (np.zeros(3, np.int32), [4], "`y` has a single number per row, but [4] per row is declared"),
        (7, [], "`y` has a single number for all rows, but a single number per row is declared"),
        ([1.5, 2, 3], [], "`y` holds numbers with fractions, but int32 is declared"),
        (["a", "b", "c"], [], "`y` does not become an array of int32"),
    ],
)
def test_wrong_arrays_say_what_is_wrong(results, values, shape, said):
    with pytest.raises(runner.WrongResult) as raised:
        results.write("y", {"dtype": "int32", "shape": shape}, values, 3)
    assert said in str(raised.value)


def test_arrays_and_lists_are_written_as_declared(results):
    results.begin()
    for values in (np.arange(3, dtype=np.int16), [0, 1, 2], np.array([0, 1, 2], object)):
        place = results.write("y", {"dtype": "int32", "shape": []}, values, 3)
        written = np.frombuffer(results._region, np.int32, 3, place["at"])
        assert written.tolist() == [0, 1, 2] and place["at"] % 64 == 0
    place = results.write("t", {"dtype": "text", "shape": [], "list": True}, [["a", "bc"], []], 2)
    assert np.frombuffer(results._region, np.int64, 3, place["offsets"]).tolist() == [0, 2, 2]
    with pytest.raises(runner.WrongResult, match="`t` holds None, but text is declared"):
        results.write("t", {"dtype": "text", "shape": []}, ["a", None], 2)


def test_versions_match_as_far_as_they_are_written():
    assert runner.matches("2.4", "2.4.6") and runner.matches("2", "2.4.6") and runner.matches("2.4.6", "2.4.6")
    assert not runner.matches("2.4", "2.40.1") and not runner.matches("2.4.6.1", "2.4.6")


def test_a_reason_names_the_users_lines_and_not_the_runners():
    def inner():
        raise KeyError("x")

    def outer():
        inner()

    with pytest.raises(KeyError) as raised:
        outer()
    reason = runner.reason_of(raised.value)
    assert reason.startswith("KeyError: 'x' (at test_runner.py line") and "in inner" in reason and "in outer" in reason


def test_generators_depend_on_the_seed_alone():
    seeds = np.array([1, 2, 1], np.uint64)
    drawn = [int(rng.integers(1 << 40)) for rng in runner.Generators(seeds)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_functions_say_which_seeds_they_take():
    assert runner.seed_keywords(lambda batch, seeds: None) == ["seeds"]
    assert runner.seed_keywords(lambda batch, **more: None) == ["seeds", "rngs"]
    with pytest.raises(runner.Refused, match="takes neither"):
        runner.seed_keywords(lambda batch: None)
