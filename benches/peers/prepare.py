"""The data of both jobs under target/peers/data, the same rows in each tool's own format. None of it is timed."""

import shutil
import sys

import environments
import shared
from places import FEEDLINE, HERE, ROWS, SHARED_DATA, Failed, folder, output

# What a contender reads: its folder, after the one that a library's own format is written from.
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
    """Makes what a contender needs and is not there yet, then reads it once, so that it lies in the page cache."""
    source = SHARED_DATA / contender.job
    if not source.is_dir():
        raise Failed(f"the data are not at {source} (set FEEDLINE_SHARED_DATA)")
    if contender.environment:
        environments.ensure(contender.environment)
    folder(contender.job).mkdir(parents=True, exist_ok=True)
    if contender.job == "text":
        tokenizer(source)
    for name in FORMATS[contender.reads]:
        place = folder(contender.job) / name
        if not place.exists():
            print(f"making {place}", file=sys.stderr)
            make(contender, place, source)
    for path in folder(contender.job).rglob("*"):
        if path.is_file():
            path.read_bytes()


def make(contender, place, source):
    """Writes the rows in one format; what is half done has another name."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if place.name not in BY_FEEDLINE:
        output(*command(contender), "--prepare", part)
    else:
        # PyTorch's ImageFolder wants a folder for each class.
        out, more = (part / "photographs", ()) if place.name == "files" else (part, ("--shards", shared.SHARDS))
        output(
            *(FEEDLINE, "make-data", contender.job, out, "--format", place.name),
            *("--from", source, "--rows", ROWS[contender.job], *more),
        )
    part.rename(place)


def command(contender):
    """The command line of a runner."""
    return [
        environments.python(contender.environment),
        HERE / contender.runner,
        *("--data", folder(contender.job), "--rows", ROWS[contender.job]),
        *("--variant", contender.variant, "--epoch", contender.epoch),
    ]


def tokenizer(source):
    """A byte-level BPE tokenizer of both languages, trained by the `tokenizers` package: the same text, the same file."""
    place = folder("text") / "tokenizer.json"
    if not place.exists():
        environments.ensure("datasets")
        output(environments.python("datasets"), HERE / "train_tokenizer.py", place, *sorted(source.iterdir()))
