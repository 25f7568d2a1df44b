"""The data of both jobs under target/peers/data, the same rows in each tool's own format. None of it is timed."""

import shutil
import subprocess
import sys

import environments
from places import FEEDLINE, HERE, ROWS, SHARED_DATA, folder, output

SHARDS = 8

# Runners that write their library's own format, and the folder that shows that they have.
OWN_FORMATS = {"grain_loader.py": "arrayrecord", "mosaicml.py": "mds", "datasets_text.py": "arrow"}


def data(contenders):
    """Makes what is not there yet for these contenders, then reads all of it once, so that it lies in the page cache."""
    for job in sorted({contender.job for contender in contenders}):
        source = SHARED_DATA / job
        if not source.is_dir():
            raise SystemExit(f"skipped: the data are not at {source} (set FEEDLINE_SHARED_DATA)")
        folder(job).mkdir(parents=True, exist_ok=True)
        if job == "images":
            feedline_data(job, "tfrecord", "tfrecord", "--shards", SHARDS)
            feedline_data(job, "webdataset", "webdataset", "--shards", SHARDS)
            feedline_data(job, "files", "files/photographs")
        else:
            feedline_data(job, "jsonl", "jsonl", "--shards", SHARDS)
            feedline_data(job, "tfrecord", "tfrecord", "--shards", SHARDS)
            tokenizer(source)
    for contender in contenders:
        own = OWN_FORMATS.get(contender.runner)
        if own and not (folder(contender.job) / own).exists():
            shutil.rmtree(folder(contender.job) / f"{own}.part", ignore_errors=True)
            subprocess.run([*map(str, command(contender)), "--prepare"], check=True, capture_output=True)
    for job in sorted({contender.job for contender in contenders}):
        for path in folder(job).rglob("*"):
            if path.is_file():
                path.read_bytes()


def command(contender):
    """The command line of a runner."""
    return [
        environments.python(contender.environment),
        HERE / contender.runner,
        *("--data", folder(contender.job), "--rows", ROWS[contender.job], "--variant", contender.variant),
    ]


def feedline_data(job, data_format, name, *more):
    """One of the formats that `feedline make-data` writes."""
    place = folder(job) / name
    if place.exists():
        return
    print(f"making {place}", file=sys.stderr)
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    source = SHARED_DATA / job
    output(FEEDLINE, "make-data", job, part, "--format", data_format, "--from", source, "--rows", ROWS[job], *more)
    part.rename(place)


def tokenizer(source):
    """A byte-level BPE tokenizer of both languages, trained by the `tokenizers` package: the same text, the same file."""
    place = folder("text") / "tokenizer.json"
    if not place.exists():
        python = environments.python("datasets")
        output(python, HERE / "train_tokenizer.py", place, *sorted(source.iterdir()))
