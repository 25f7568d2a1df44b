"""Runs Feedline in one process and as separate processes, and the raw kernel."""

import contextlib
import json
import subprocess
import tempfile

import shared
from paths import FEEDLINE, ROWS, SHARED_DATA, Failed, folder, output

BATCHES = {"images": shared.IMAGE_BATCH, "text": shared.TEXT_BATCH}
PIPELINES = {
    "images": """
name: peers
source: {{ url: "{data}/tfrecord/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: {seed}
shuffle: {{ window: 4096 }}
operators:{cache}
  - random_resized_crop: {{ column: image, size: [{size}, {size}] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: {batch} }}
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
  - pad: {{ column: de, length: {tokens} }}{cache}
  - batch: {{ size: {batch} }}
""",
}

# The operators before the crop, or before the batch of text, for contenders that measure later epochs.
CACHES = {
    "indexed": "\n  - recode_jpeg: {column: image}\n  - cache: {tier: memory}",
    "disk": "\n  - recode_jpeg: {column: image}\n  - cache: {tier: disk}",
    "decoded": "\n  - decode_image: {column: image}\n  - cache: {tier: memory}",
    "tokens": "\n  - cache: {tier: memory}",
}
# Number of later epochs. Their time must exceed the difference between two first epochs.
LATER_EPOCHS = {"images": 3, "text": 60}
MEMORY = "8GiB"


def run(contender, cores):
    """Runs one round of a contender that is Feedline or its kernel."""
    if contender.key == "kernel":
        return kernel(cores)
    file = write_pipeline(contender.job, contender.variant)
    if contender.variant:
        return measure_later(contender.job, file, "--index-dir", folder(contender.job) / "index", "--cores", cores)
    if not contender.key.endswith("-processes"):
        index = ("--index-dir", folder(contender.job) / "index")
        output(FEEDLINE, "index", file, *index)
        return measure(contender.job, file, *index, "--cores", cores)
    with service(cores) as url:
        output(FEEDLINE, "index", file, "--coordinator", url)
        return measure(contender.job, file, "--coordinator", url)


def write_pipeline(job, cache=""):
    """Writes the pipeline file of a job with one of the caches."""
    file = folder(job) / f"pipeline{cache}.yaml"
    numbers = {"size": shared.SIZE, "tokens": shared.TOKENS, "seed": shared.SEED}
    file.write_text(PIPELINES[job].format(data=folder(job), cache=CACHES.get(cache, ""), batch=BATCHES[job], **numbers))
    return file


def measure(job, *arguments):
    """Measures a run on indexed data. The time to the first batch starts with the process, so it includes the time to open the job."""
    report = run_epochs(job, 1, *arguments)
    first = report["first_batch_seconds"]
    seconds = report["setup_seconds"] + report["seconds"] - first
    return shared.result(version(), report["rows"] - BATCHES[job], seconds, first)


def measure_later(job, *arguments):
    """Measures epochs from a cache: the time of several epochs minus the time of the first epoch, which fills a memory cache."""
    with tempfile.TemporaryDirectory() as rows:
        cache = ("--memory", MEMORY, "--cache-dir", rows)
        # A disk cache remains after the run that fills it.
        run_epochs(job, 1, *arguments, *cache)
        one = run_epochs(job, 1, *arguments, *cache)
        more = run_epochs(job, 1 + LATER_EPOCHS[job], *arguments, *cache)
    return shared.result(version(), LATER_EPOCHS[job] * ROWS[job], more["seconds"] - one["seconds"], None)


def run_epochs(job, epochs, *arguments):
    """Returns the report of a run."""
    # Disable automatic caches. On a cluster, the flag is set on the coordinator.
    uncached = () if "--coordinator" in arguments else ("--auto-cache", "off")
    command = (FEEDLINE, "run", *arguments, *uncached, "--epochs", epochs, "--report", "json", "--no-digest")
    report = json.loads(output(*command).splitlines()[-1])
    if report["rows"] != epochs * ROWS[job]:
        raise Failed(f"{epochs} epochs delivered {report['rows']} rows, not {epochs * ROWS[job]}")
    return report


def kernel(cores):
    """Returns the rate of one thread times the number of cores, which is the rate without any other cost."""
    passes = max(1, ROWS["images"] // 400)
    command = ("bench", "kernel", SHARED_DATA / "images", "--only", "one", "--turns", "1", "--passes", passes)
    report = json.loads(output(FEEDLINE, *command, "--report", "json").splitlines()[-1])
    return shared.result(version(), cores * report["subjects"][0]["images_per_s"], 1, None)


def version():
    return f"Feedline {output(FEEDLINE, '--version').split()[-1]}"


@contextlib.contextmanager
def service(cores):
    """Starts a coordinator and a worker as processes, and yields the URL of the coordinator."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as roles:
        address = roles.enter_context(role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", scratch))
        url = f"http://{address}"
        roles.enter_context(role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", cores))
        yield url


@contextlib.contextmanager
def role(*arguments):
    """Starts a role and yields its listen address."""
    process = subprocess.Popen(
        [str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()
