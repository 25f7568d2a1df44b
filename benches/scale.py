#!/usr/bin/env python3
"""Measures the scaling of one worker: with cores, slow rows, small rows, huge rows, many shards, and over 200 epochs.

Prints Markdown tables. `make scale` builds Feedline in release mode and runs this script. Measurements that need
photographs are skipped if no photographs are available.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import usage

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHOTOS = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data")) / "images"
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
CORES = os.cpu_count()
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SMALL_ROWS = 8_000_000
SHARDS = 10_000
HUGE_ROWS, HUGE_BYTES = 16, 100_000_000
WAITING_CORES = 64
SOAK_PARTS, SOAK_EPOCHS = 10, 20

PHOTO_PIPELINE = """
name: photographs
source: {{ url: "{data}/*", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""

# `wait` uses no CPU. Its 64 concurrent executions therefore simulate an operator on 64 busy cores on any machine.
SLOW_PIPELINE = """
name: slow
source: {{ {source} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - repeat: {{ count: {passes} }}
{operators}
  - wait: {{ ms: {ms}, parallelism: 64 }}
  - batch: {{ size: {batch} }}
"""


def uncached(arguments):
    """Returns the flags that disable automatic caches. On a cluster, the flag is set on the coordinator."""
    return () if "--coordinator" in arguments else ("--auto-cache", "off")


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def report(*arguments):
    return json.loads(output(FEEDLINE, "run", *arguments, *uncached(arguments), "--report", "json", "--no-digest").splitlines()[-1])


def kernel():
    """Returns the images per second of the raw kernel on all cores together."""
    command = ("bench", "kernel", PHOTOS, "--only", "together", "--turns", "1", "--passes", "10", "--report", "json")
    return json.loads(output(FEEDLINE, *command).splitlines()[-1])["subjects"][0]["images_per_s"]


def role(*arguments):
    process = subprocess.Popen([str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, process.stdout.readline().split()[-1]


class Scratch:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.index = ("--index-dir", self.folder / "index")

    def data(self, name, kind, *arguments):
        output(FEEDLINE, "make-data", kind, self.folder / name, *arguments)
        return self.folder / name

    def pipeline(self, name, text):
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        output(FEEDLINE, "index", path, *self.index)
        return path


def cores(scratch):
    data = scratch.data("photographs", "images", "--format", "tfrecord", "--from", PHOTOS, "--shards", "4")
    file = scratch.pipeline("photographs", PHOTO_PIPELINE.format(data=data))
    counts = [count for count in (1, 2, 4, 8, 16) if count <= CORES]
    rates = {count: [] for count in counts}
    for _ in range(ROUNDS):
        for count in counts:
            rates[count].append(report(file, *scratch.index, "--cores", count, "--epochs", 10 * count)["rows_per_s"])
    one = statistics.median(rates[1])
    print("\n| photographs, cores of one worker | images/s | range | efficiency |\n|---|---|---|---|")
    for count in counts:
        median = statistics.median(rates[count])
        print(f"| {count} | {median:.0f} | {min(rates[count]):.0f} to {max(rates[count]):.0f} | {100 * median / one / count:.1f} % |")
    return file


def busy_cores(scratch, title, file, ms, consumers, limit):
    """Prints the rate of an operator that occupies 64 cores, relative to the rate of 64 fully busy cores."""
    ideal = 1000 * WAITING_CORES / ms
    arguments = (file, *scratch.index, "--cores", WAITING_CORES, "--virtual-consumers", consumers, "--limit", limit)
    runs = [report(*arguments) for _ in range(ROUNDS)]
    rate = statistics.median(run["steady_rows_per_s"] or run["rows_per_s"] for run in runs)
    print(f"| {title}, {ms} ms per row | {consumers} | {rate:.0f} | {ideal:.0f} | {rate / ideal:.2f} |", flush=True)


def slow_rows(scratch):
    print(f"\n| an operator that occupies {WAITING_CORES} cores | streams | rows/s | ideal | ratio |\n|---|---:|---:|---:|---:|")
    text = f"url: '{PHOTOS.parent}/text/multi30k.train.en', format: text"
    file = scratch.pipeline("slow-text", SLOW_PIPELINE.format(source=text, passes=100, operators="", ms=4, batch=64))
    for consumers in (1, 64):
        busy_cores(scratch, "text", file, 4, consumers, 120_000)
    photographs = f"url: '{scratch.folder}/photographs/*', format: tfrecord, features: {{ image: image/encoded, label: image/class/label }}"
    crop = "  - random_resized_crop: { column: image, size: [224, 224] }"
    file = scratch.pipeline("slow-photographs", SLOW_PIPELINE.format(source=photographs, passes=100, operators=crop, ms=400, batch=16))
    for consumers in (1, 16):
        busy_cores(scratch, "photographs", file, 400, consumers, 1_600)
    first = SLOW_PIPELINE.format(source=text, passes=1, operators="", ms=4, batch=512)
    file = scratch.pipeline("slow-first", first)
    runs = [report(file, *scratch.index, "--cores", WAITING_CORES, "--limit", 512) for _ in range(2 * ROUNDS + 1)]
    times = [run["first_batch_seconds"] - run["setup_seconds"] for run in runs]
    print(f"\nfirst batch (512 rows at 4 ms each, {WAITING_CORES} cores, stored index): median {statistics.median(times):.3f} s (minimum 0.032 s)")


def engine():
    """Prints the CPU time of the engine per batch, and the share of the time in which its threads wait for its lock."""
    run = json.loads(output(FEEDLINE, "bench", "engine", "--report", "json").splitlines()[-1])
    print(f"\n| engine of {run['cores']} threads, streams | batches/s | CPU µs per batch | waits for the engine's lock |\n|---:|---:|---:|---:|")
    for streams, key in ((1, "one_stream"), (run["streams"], "many_streams")):
        cost = run[key]
        print(f"| {streams} | {cost['batches_per_s']:.0f} | {cost['cpu_us_per_batch']:.1f} | {100 * cost['lock_wait_share']:.1f} % |")
    print(f"\nCPU time per batch, relative to one stream: {run['cost_ratio']:.2f}")


def small_rows(scratch):
    print("\n| rows of 112 bytes through filter and batch, 1 core | million rows/s | million rows per CPU second |\n|---|---|---|")
    for form in ("arrow", "parquet", "csv", "tfrecord", "jsonl"):
        data = scratch.data(f"table-{form}", "table", "--format", form, "--rows", SMALL_ROWS, "--shards", "8")
        operators = 'operators: [ filter: { where: "label < 6" }, batch: { size: 8192 } ]'
        file = scratch.pipeline(form, f"name: small\nsource: {{ url: '{data}/*', format: {form} }}\n{operators}\n")
        runs = [report(file, *scratch.index, "--cores", 1) for _ in range(ROUNDS)]
        rate = statistics.median(SMALL_ROWS / run["seconds"] for run in runs)
        cpu = statistics.median(SMALL_ROWS / sum(each["cpu_seconds"] for each in run["operators"]) for run in runs)
        print(f"| {form} | {rate / 1e6:.2f} | {cpu / 1e6:.2f} |")


def huge_rows(scratch):
    folder = scratch.folder / "huge"
    folder.mkdir()
    for row in range(HUGE_ROWS):
        (folder / f"{row:03}.bin").write_bytes(os.urandom(1 << 20) * (HUGE_BYTES >> 20))
    file = scratch.pipeline("huge", f"name: huge\nsource: {{ url: '{folder}/*', format: files }}\noperators: [ batch: {{ size: 1 }} ]\n")
    run = report(file, *scratch.index, "--memory", "1GiB")
    peak = max(run["peak_rss_bytes"]["workers"])
    print(f"\n{HUGE_ROWS} rows of {HUGE_BYTES / 1e6:.0f} MB: {run['bytes'] / run['seconds'] / 1e9:.2f} GB/s, peak {peak / 1e6:.0f} MB with --memory 1GiB")


def many_shards(scratch):
    data = scratch.data("shards", "table", "--format", "tfrecord", "--rows", 64 * SHARDS, "--shards", SHARDS)
    file = scratch.pipeline("shards", f"name: shards\nsource: {{ url: '{data}/*', format: tfrecord }}\nshuffle: {{ window: 4096 }}\noperators: [ batch: {{ size: 256 }} ]\n")
    first = [report(file, *scratch.index, "--limit", 1)["first_batch_seconds"] for _ in range(ROUNDS)]
    print(f"\n{SHARDS} indexed shards: first batch after {statistics.median(first):.3f} s ({min(first):.3f} to {max(first):.3f})")


def soak(scratch, file):
    coordinator, address = role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", scratch.folder / "coordinator")
    url = f"http://{address}"
    worker, _ = role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", CORES)
    print(f"\n| epochs of {SOAK_PARTS * SOAK_EPOCHS}, one worker process | images/s | relative to kernel | resident, MB |\n|---|---|---|---|")
    shares = []
    try:
        before = kernel()
        for part in range(SOAK_PARTS):
            rate = report(file, "--coordinator", url, "--epochs", SOAK_EPOCHS)["rows_per_s"]
            after = kernel()
            # The speed of the machine varies, so the kernel runs directly before and after for comparison.
            shares.append(2 * rate / (before + after))
            before = after
            status = pathlib.Path(f"/proc/{worker.pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            epochs = f"{part * SOAK_EPOCHS + 1} to {(part + 1) * SOAK_EPOCHS}"
            print(f"| {epochs} | {rate:.0f} | {100 * shares[-1]:.1f} % | {resident / 1000:.0f} |")
        print(f"\nlast tenth / first tenth, both relative to the kernel: {100 * shares[-1] / shares[0]:.1f} %")
    finally:
        worker.terminate()
        coordinator.terminate()


def main():
    usage.check(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(folder)
        if PHOTOS.is_dir():
            file = cores(scratch)
            slow_rows(scratch)
            soak(scratch, file)
        else:
            print(f"skipped: no photographs in {PHOTOS} (set FEEDLINE_SHARED_DATA)", file=sys.stderr)
        engine()
        small_rows(scratch)
        huge_rows(scratch)
        many_shards(scratch)


if __name__ == "__main__":
    main()
