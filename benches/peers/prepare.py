"""Writes the data of both jobs to target/peers/data: the same rows in the format of each tool. Preparation is not measured."""

import shutil
import sys

import environments
import shared
from paths import FEEDLINE, HERE, ROWS, SHARED_DATA, Failed, folder, output

# Directories that a format needs. The data in a library's own format is written from the preceding directory.
FORMATS = {
    "TFRecord": ["tfrecord"],
    "tar": ["webdataset"],
    "JSON lines": ["jsonl"],
    "files": ["files"],
    "ArrayRecord": ["files", "arrayrecord"],
    "MDS": ["files", "mds"],
    "Arrow": ["jsonl", "arrow"],
    "files in memory": [],
}
BY_FEEDLINE = ("tfrecord", "webdataset", "files", "jsonl")


def ready(contender):
    """Creates missing data of a contender, and reads all data once to load it into the page cache."""
    source = SHARED_DATA / contender.job
    if not source.is_dir():
        raise Failed(f"no data in {source} (set FEEDLINE_SHARED_DATA)")
    if contender.environment:
        environments.ensure(contender.environment)
    folder(contender.job).mkdir(parents=True, exist_ok=True)
    if contender.job == "text":
        tokenizer(source)
    for name in FORMATS[contender.reads]:
        place = folder(contender.job) / name
        if not place.exists():
            print(f"writing {place}", file=sys.stderr)
            make(contender, place, source)
    for path in folder(contender.job).rglob("*"):
        if path.is_file():
            path.read_bytes()


def make(contender, place, source):
    """Writes the rows in one format. Incomplete data has the suffix `.part`."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if place.name not in BY_FEEDLINE:
        output(*command(contender), "--prepare", part)
    else:
        # PyTorch's ImageFolder requires a directory per class.
        out, more = (part / "photographs", ()) if place.name == "files" else (part, ("--shards", shared.SHARDS))
        output(
            *(FEEDLINE, "make-data", contender.job, out, "--format", place.name),
            *("--from", source, "--rows", ROWS[contender.job], *more),
        )
    part.rename(place)


def command(contender):
    """Returns the command line of a runner."""
    return [
        environments.python(contender.environment),
        HERE / contender.runner,
        *("--data", folder(contender.job), "--rows", ROWS[contender.job]),
        *("--variant", contender.variant, "--epoch", contender.epoch),
    ]


def tokenizer(source):
    """Trains a byte-level BPE tokenizer for both languages with the `tokenizers` package. The same text always produces the same file."""
    place = folder("text") / "tokenizer.json"
    if not place.exists():
        environments.ensure("datasets")
        output(environments.python("datasets"), HERE / "train_tokenizer.py", place, *sorted(source.iterdir()))
