"""Pipelines in Python are equal to pipeline files."""

from __future__ import annotations

from pathlib import Path

import feedline
import pytest
from feedline import _native


def test_every_operator_has_a_method_and_every_parameter_a_keyword(tmp_path: Path) -> None:
    missing = [name for name in _native.operators() if not hasattr(feedline.Pipeline, name)]
    assert missing == []
    built = (
        feedline.read(
            url=["a/*.tfrecord", "b/*.tfrecord"], format="tfrecord", features={"image": "image/encoded", "label": "l"}, seed=5, name="all"
        )
        .shuffle(window=4096)
        .on_error("skip")
        .recode_jpeg(column="image")
        .cache(tier="disk")
        .random_resized_crop(column="image", size=[224, 224], scale=[0.1, 1.0], ratio=[0.5, 2.0], parallelism=3)
        .random_horizontal_flip(column="image", p=0.25)
        .normalize(column="image", mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2], dtype="float16", layout="chw")
        .cast(column="label", dtype="int32")
        .rename(columns={"y": "label"})
        .select(columns=["image", "y"])
        .filter(where="y <> 3")
        .repeat(2)
        .batch(256, remainder="drop")
    )
    file = tmp_path / "all.yaml"
    file.write_text(built.to_yaml())
    assert feedline.load(file).check() == built.check()
    assert "parallelism: 3" in built.to_yaml()
    assert built.with_batch_size(8).check()["operators"][-1] == {"batch": {"size": 8, "remainder": "drop"}}


def test_settings_of_a_source_are_keywords() -> None:
    birds = feedline.read("hf://datasets/org/birds", "huggingface", config="small", split="train", credentials="hub").batch(4)
    source = {"url": "hf://datasets/org/birds", "format": "huggingface", "credentials": "hub", "config": "small", "split": "train"}
    assert birds.check()["source"] == source
    events = feedline.read("s3://bucket/events/", "parquet", partitions="hive").filter("year = 2024").batch(4)
    assert events.check()["source"]["partitions"] == "hive"
    records = feedline.read("a/", "tfrecord", compression="zlib").batch(4)
    assert records.check()["source"]["compression"] == "zlib"
    with pytest.raises(feedline.WrongUse, match="files of the format parquet are not compressed as a whole; remove `compression`"):
        feedline.read("a/", "parquet", compression="gzip").batch(4).check()
    with pytest.raises(feedline.WrongUse, match="the format parquet has no split; remove `split`"):
        feedline.read("a/", "parquet", split="train").batch(4).check()


def test_methods_return_new_pipelines() -> None:
    start = feedline.read(url="x", format="text")
    one, other = start.batch(2), start.batch(3)
    assert one.check()["operators"] != other.check()["operators"]
    assert start.with_batch_size(7).check()["operators"][0]["batch"]["size"] == 7


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        (lambda: feedline.read(url="x", format="txt").batch(2), "pipeline: unknown source.format `txt`"),
        (lambda: feedline.read(url="x", format="text"), "operators"),
        (lambda: feedline.read(url="x", format="text").batch(0), "batch"),
        (lambda: feedline.read(url="x", format="text").resize("a", [1]).batch(2), "size"),
    ],
)
def test_errors_of_pipelines_without_a_file_have_no_line(pipeline, sentence: str) -> None:
    with pytest.raises(feedline.WrongUse) as error:
        pipeline().check()
    text = str(error.value)
    assert sentence in text and "\n" not in text and "pipeline:1" not in text


def test_errors_of_pipeline_files_have_a_path_and_a_line(tmp_path: Path) -> None:
    with pytest.raises(feedline.WrongUse, match="cannot read .*none.yaml: no such file or directory"):
        feedline.open(tmp_path / "none.yaml")
    file = tmp_path / "wrong.yaml"
    file.write_text("name: x\nsource: { url: a, format: text }\noperators:\n  - batch: { siez: 4 }\n")
    with pytest.raises(feedline.WrongUse, match=r"wrong.yaml:4: .*did you mean `size`"):
        feedline.open(file)
    with pytest.raises(feedline.WrongUse, match="the pipeline is a int"):
        feedline.open(3)  # type: ignore[arg-type]
