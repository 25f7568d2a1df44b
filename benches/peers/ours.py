"""Feedline itself, in one process and as separate processes, and the raw kernel beside it."""

import contextlib
import json
import subprocess
import tempfile

import shared
from places import FEEDLINE, KERNEL, ROWS, SHARED_DATA, folder, output

PIPELINES = {
    "images": """
name: peers
source: {{ url: "{data}/tfrecord/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: {seed}
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [{size}, {size}] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: {image_batch} }}
""",
    "text": """
name: peers-text
source: {{ url: "{data}/jsonl/*.jsonl", format: jsonl }}
seed: {seed}
shuffle: {{ window: 4096 }}
operators:
  - tokenize: {{ column: en, tokenizer: "{data}/tokenizer.json" }}
  - truncate: {{ column: en, length: {tokens} }}
  - pad: {{ column: en, length: {tokens} }}
  - tokenize: {{ column: de, tokenizer: "{data}/tokenizer.json" }}
  - truncate: {{ column: de, length: {tokens} }}
  - pad: {{ column: de, length: {tokens} }}
  - batch: {{ size: {text_batch} }}
""",
}


def version():
    return output(FEEDLINE, "--version").split()[-1]


def pipeline(job):
    """The pipeline file of a job, and the arguments of a run on this machine; the data are indexed."""
    place = folder(job)
    file = place / "pipeline.yaml"
    numbers = {"size": shared.SIZE, "tokens": shared.TOKENS, "seed": shared.SEED}
    numbers |= {"image_batch": shared.IMAGE_BATCH, "text_batch": shared.TEXT_BATCH}
    file.write_text(PIPELINES[job].format(data=place, **numbers))
    index = ("--index-dir", place / "index")
    output(FEEDLINE, "index", file, *index)
    return file, index


def seconds(job, *arguments):
    """Seconds of a run, the opening of the job included, to its last batch."""
    report = json.loads(output(FEEDLINE, "run", *arguments, "--report", "json", "--no-digest").splitlines()[-1])
    if report["rows"] != report["epochs"] * ROWS[job]:
        raise RuntimeError(f"{report['rows']} rows of {report['epochs']} epochs came")
    return report["setup_seconds"] + report["seconds"]


def two_epochs(job, *arguments):
    """Seconds of a first epoch and of a second: a run of two epochs less a run of one."""
    first, both = (seconds(job, *arguments, "--epochs", epochs) for epochs in (1, 2))
    return {"version": version(), "rows": ROWS[job], "seconds": [first, both - first]}


def first_epoch(job, cores):
    """Rows per second of a first epoch in one process."""
    file, index = pipeline(job)
    return ROWS[job] / seconds(job, file, *index, "--cores", cores)


def run(contender, cores):
    """One turn of a contender that is ours."""
    if contender.key == "kernel":
        passes = max(1, ROWS["images"] // 400 // 2)
        rate = cores * float(output(KERNEL, SHARED_DATA / "images", passes))
        return {"version": version(), "rows": ROWS["images"], "seconds": [ROWS["images"] / rate]}
    file, index = pipeline(contender.job)
    if not contender.key.endswith("-processes"):
        return two_epochs(contender.job, file, *index, "--cores", cores)
    with service(cores) as url:
        output(FEEDLINE, "index", file, "--coordinator", url)
        return two_epochs(contender.job, file, "--coordinator", url)


@contextlib.contextmanager
def service(cores):
    """A coordinator and a worker as processes: the coordinator's URL."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as roles:
        address = roles.enter_context(role("coordinator", "--listen", "127.0.0.1:0", "--data-dir", scratch))
        url = f"http://{address}"
        roles.enter_context(role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", cores))
        yield url


@contextlib.contextmanager
def role(*arguments):
    """A role of the service: the address on which it listens."""
    process = subprocess.Popen([str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()
