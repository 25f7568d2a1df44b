"""Conversion of arguments: numbers of NumPy and PyTorch, paths, ranges, single names; invalid values raise one sentence."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import feedline
import numpy as np
import pytest
from feedline import _arguments, _native, _ranks

TEXT = feedline.read(url="x", format="text")
WRONG = [
    None, 3, 0.5, "a", True, ["a"], ("a", "b"), range(2), np.int64(3), np.float32(0.5), np.bool_(True), np.array([2, 2]), np.array(["a"]),
    np.float32, np.longdouble(1), np.datetime64("2020"), Path("p"), object(), object, {"a": 1}, {1: "a"}, {"a"}, b"x", bytearray(b"x"), float("nan"),
    2**70, 1j, [[object()]], TEXT,
]  # fmt: skip


@pytest.mark.parametrize("name", [*_native.operators(), "named", "seed", "shuffle", "order", "on_error", "with_batch_size"])
def test_invalid_arguments_of_operators_raise_one_sentence(name: str) -> None:
    parameters = inspect.signature(getattr(feedline.Pipeline, name)).parameters
    keywords = [key for key, parameter in parameters.items() if key != "self" and parameter.kind is not parameter.VAR_KEYWORD]
    needed = {key: "m:f" if key == "function" else 2 for key in keywords if parameters[key].default is inspect.Parameter.empty}
    errors = 0
    for key in keywords:
        for value in WRONG:
            try:
                getattr(TEXT, name)(**{**needed, key: value}).check()
            except feedline.WrongUse as error:
                assert "\n" not in str(error)
                errors += 1
    assert errors > len(keywords) * len(WRONG) // 3


def test_numbers_and_arrays_of_numpy_are_converted() -> None:
    def built(number: Any, real: Any, listed: Any, path: Any) -> dict[str, Any]:
        source = feedline.read(url=[path("a"), path("b")], format="tfrecord", features={"image": "i"}, seed=number(5))
        operators = source.shuffle(number(64)).random_resized_crop("image", listed([8, 9]), scale=listed([0.5, 1.0]), parallelism=number(2))
        operators = operators.normalize("image", listed([0.5] * 3), listed([0.25] * 3), dtype="float32").random_horizontal_flip("image", p=real(0.5))
        return operators.cast("image", "float16").select(listed(["image"])).batch(number(4)).check()

    plain = built(int, float, list, str)
    assert built(np.int64, np.float32, np.array, Path) == plain
    assert built(np.uint8, np.float64, tuple, Path) == plain
    assert built(lambda number: np.array(number), Fraction, iter, str) == plain


def test_numbers_and_tensors_of_torch_are_converted() -> None:
    torch = pytest.importorskip("torch")
    plain = TEXT.cast("label", "float16").resize("image", [8, 9]).batch(4).check()
    assert TEXT.cast("label", torch.float16).resize("image", torch.tensor([8, 9])).batch(torch.tensor(4)).check() == plain


def test_single_names_and_dtype_objects_are_converted() -> None:
    assert TEXT.select("id").batch(1).check() == TEXT.select(["id"]).batch(1).check()
    assert TEXT.select({"id": 1}.keys()).batch(1).check() == TEXT.select(["id"]).batch(1).check()
    assert TEXT.pack("id", 8, 2).check() == TEXT.pack(["id"], 8, 2).check()
    assert TEXT.bucket_by_length("id", range(4, 9, 4), tokens=64).check() == TEXT.bucket_by_length(["id"], [4, 8], tokens=64).check()
    plain = TEXT.map("m:f", {"a": {"dtype": "float32"}, "b": {"dtype": "int8", "shape": [3]}}, columns=["id"]).cast("a", "int64").batch(1).check()
    objects = TEXT.map("m:f", {"a": np.float32, "b": (np.dtype("int8"), 3)}, columns="id").cast("a", np.int64).batch(1).check()
    assert objects == plain
    mesh = SimpleNamespace(mesh_dim_names=("batch",), get_coordinate=lambda: (1,), mesh=np.arange(2))
    assert _ranks.find_ranks(None, None, None, mesh, "batch", {}).consumer_of_mesh == (1, 2, 0)


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (lambda: TEXT.resize("image", 224).batch(1).check(), r"resize.size must be \[height, width\], such as \[224, 224\], got 224"),
        (lambda: TEXT.decode_image(None), "decode_image.column is None, but decode_image requires it"),
        (lambda: TEXT.resize("image", {8, 9}), r"resize.size is \{8, 9\}, of type set; expected"),
        (lambda: TEXT.normalize("image", [0, 0, 0], [1, 1, float("nan")]), r"normalize.std\[2\] is nan; expected a finite number"),
        (lambda: TEXT.rename({"a": "b", 3: "c"}), "rename.columns has the key 3; keys must be strings"),
        (lambda: TEXT.rename(["a"]).batch(1).check(), "rename.columns must be a mapping, got a list"),
        (lambda: TEXT.filter("a > 1", columns=["a"]), "filter with an SQL expression has no option columns="),
        (lambda: TEXT.map("m:f", {"a": ("float32",)}), r"map.outputs.a is \('float32',\); expected a dtype, or \(dtype, shape\)"),
        (lambda: TEXT.map("m:f", ["a"]).batch(1).check(), "map.outputs must be a mapping, got a list"),
        (lambda: TEXT.seed(2**70), "seed is 118.*; expected a number of at most 64 bits"),
        (lambda: feedline.read(None, "text").batch(1).check(), "source.url must be a path, glob or URL, or a list of them, got nothing"),
        (lambda: feedline.read([Path("a"), b"b"], "text"), r"source.url\[1\] is b'b', of type bytes"),
        (lambda: feedline.load(None), "the pipeline file is None; expected a path"),
        (lambda: feedline.Pipeline(3), "not from 3"),
        (lambda: feedline.mix(TEXT), "a mix requires a list of sources"),
        (lambda: feedline.mix([]), "a mix requires a list of sources"),
        (lambda: feedline.mix([TEXT], weights=[1, 2]), "1 sources has 2 weights"),
        (lambda: feedline.merge_states({}), "merge_states requires a list of the states of all ranks"),
        (lambda: feedline.merge_states([None]), "this is not a job state"),
    ],
)
def test_invalid_pipelines_raise_one_sentence(pipeline: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(feedline.WrongUse, match=sentence):
        pipeline()


@pytest.mark.parametrize(
    "option",
    ["batch_size", "epochs", "rank", "world_size", "consumers", "replica_size", "virtual_consumers", "buffer", "weight", "patience"]
    + ["elastic", "progress", "name", "mesh", "state", "cores", "workers"],
)
def test_invalid_options_of_open_raise_one_sentence(option: str, local: dict[str, Any]) -> None:
    errors = 0
    for value in WRONG:
        try:
            TEXT.batch(1).open(**{**local, option: value}).close()
        except feedline.WrongUse as error:
            assert "\n" not in str(error)
            errors += 1
    assert errors > len(WRONG) // 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 1.5}, "epochs is 1.5; expected an integer"),
        ({"epochs": "3"}, "epochs is '3'; expected an integer"),
        ({"rank": True, "world_size": 2}, "rank is True; expected an integer"),
        ({"weight": "high"}, "weight is 'high'; expected a number"),
        ({"elastic": "yes"}, "elastic is 'yes'; expected True or False"),
        ({"name": 3}, "name is 3; expected a string"),
        ({"mesh": [0, 1]}, "expected a PyTorch DeviceMesh"),
        ({"coordinator": []}, r"coordinator is \[\]; expected the URL of a coordinator"),
        ({"coordinator": 7070}, "coordinator is 7070; expected the URL of a coordinator"),
        ({"index_dir": object()}, "index_dir is <object.*; expected a path"),
        ({"workers": 0}, "workers is 0; expected an integer greater than 0"),
        ({"memory": [1]}, r"memory is \[1\]; expected an integer"),
        ({"functions": "yes"}, "functions is 'yes'; expected True or False"),
        ({"allow_url": ["a", 3]}, r"allow_url is \['a', 3\]; expected a string"),
        ({"cores": {"a": 1}}, r"cores is \{'a': 1\}; expected an integer"),
    ],
)
def test_the_error_names_an_invalid_option(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(feedline.WrongUse, match=sentence):
        TEXT.batch(1).open(**options)


def test_a_job_accepts_numbers_of_numpy(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    whole = {"batch_size": 100.0, "epochs": np.int64(1), "rank": np.int32(0), "world_size": np.int64(2), "virtual_consumers": np.uint8(2)}
    real = {"buffer": 1e9, "weight": np.float32(1), "patience": np.int64(9), "elastic": np.bool_(False), "progress": np.bool_(False)}
    with numbers.open(**whole, **real, **{**local, "cores": np.int64(1), "auto_cache": np.bool_(False)}) as job:
        job.skip(np.int64(0), np.int64(1))
        loop = iter(job)
        first = next(loop)["id"].tolist()
        state = job.state_dict(at=np.int64(2))
        loop.close()
        with pytest.raises(feedline.WrongUse, match="first is 'a'; expected an integer"):
            job.skip("a", 3)  # type: ignore[arg-type]
        with pytest.raises(feedline.WrongUse, match="at is 0.5; expected an integer"):
            job.state_dict(at=0.5)  # type: ignore[arg-type]
    assert json.loads(json.dumps(state)) == state and len(first) == 100
    # Checkpoints of array libraries return numbers as arrays without dimensions.
    arrays = {key: np.asarray(value) if isinstance(value, int) else value for key, value in state.items()}
    assert any(isinstance(value, np.ndarray) for value in arrays.values())
    with numbers.open(state=arrays, epochs=1, rank=0, world_size=2, batch_size=100, **local) as job:
        assert json.loads(json.dumps(job.state_dict())) == state


def test_messages_shorten_values_to_one_line() -> None:
    assert len(_arguments.shorten(np.zeros((100, 100)))) < 40 and "\n" not in _arguments.shorten(np.zeros((3, 3)))


@pytest.mark.parametrize("url", [3, [], ["a", None], [["a"]], {"a": "b"}, None])
def test_invalid_urls_raise_one_sentence(url: Any) -> None:
    with pytest.raises(feedline.WrongUse, match="source.url"):
        feedline.read(url=url, format="text").batch(2).check()
