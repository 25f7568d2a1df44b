#!/usr/bin/env python3
"""Measures the rate of one worker by the number of virtual consumers and of consumer sessions.

Prints Markdown tables. Long epochs use `repeat` and end with --limit, and their rates exclude the first two seconds. Short epochs
have 29,000 rows. With 512 virtual consumers, each virtual consumer has one lease of about 57 rows per short epoch. The runs
of each ratio are interleaved. `make scale` builds Feedline in release mode and runs this script. ROUNDS is the number of
rounds (3).
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
DATA = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
CORES = 2
ROUNDS = int(os.environ.get("ROUNDS", "3"))
TICKS = os.sysconf("SC_CLK_TCK")

TEXT = """
name: text
source: {{ url: "{data}/text/multi30k.train.en", format: text }}
seed: 7
shuffle: {{ window: 4096 }}
operators:{repeat}
  - batch: {{ size: 64 }}
"""
PHOTOGRAPHS = """
name: photographs
source: {{ url: "{data}/*", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - repeat: {{ count: 400 }}
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""
# An operator that waits `ms` milliseconds per row, one row at a time. Waiting uses no CPU, so one machine can run many workers.
SLOW = """
name: slow
source: {{ url: "{data}/text/multi30k.train.en", format: text }}
seed: 7
shuffle: {{ window: 1024 }}
operators:
  - repeat: {{ count: 200 }}
  - wait: {{ ms: {ms}, parallelism: 1 }}
  - batch: {{ size: 64 }}
"""
FEEDING_SECONDS = 60
LONG = "\n  - repeat: { count: 20000 }"
SHORT_EPOCHS = 400
SHORT_ROWS = 29_000


def report(*arguments):
    command = [FEEDLINE, "run", *arguments, "--report", "json", "--no-digest"]
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def embedded(file, consumers, *arguments):
    return report(file, "--auto-cache", "off", "--cores", CORES, "--virtual-consumers", consumers, *arguments)


def steady(run):
    return run["steady_rows_per_s"] or run["rows_per_s"]


def micros(run):
    return 1e6 * sum(worker["process_seconds"] for worker in run["worker_cpu"]) / run["rows"]


def long_epochs(title, file, counts, limits):
    runs = {count: [] for count in counts}
    for _ in range(ROUNDS):
        for count in counts:
            runs[count].append(embedded(file, count, "--limit", limits[count]))
    one = statistics.median(map(steady, runs[counts[0]]))
    print(f"\n| {title}, virtual consumers | rows/s | relative to 1 | CPU µs per row |\n|---:|---:|---:|---:|")
    for count in counts:
        rate = statistics.median(map(steady, runs[count]))
        print(f"| {count} | {rate:,.0f} | {rate / one:.3f} | {statistics.median(map(micros, runs[count])):.3f} |", flush=True)


def short_epochs(file):
    print("\n| short epochs of 29,000 sentences, virtual consumers | rows/s | leases/s |\n|---:|---:|---:|")
    for count in (1, 64, 512):
        rates = [embedded(file, count, "--epochs", SHORT_EPOCHS)["rows_per_s"] for _ in range(ROUNDS)]
        rate = statistics.median(rates)
        # Each of the 512 virtual consumers has one lease per epoch.
        leases = f"{rate / SHORT_ROWS * count:,.0f}" if count == 512 else ""
        print(f"| {count} | {rate:,.0f} | {leases} |", flush=True)


def role(*arguments):
    process = subprocess.Popen([str(FEEDLINE), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, process.stdout.readline().split()[-1]


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def sessions(scratch, file, counts, limits):
    """Measures the CPU time per row of a worker process with many consumers of one job over gRPC."""
    coordinator, address = role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", scratch / "coordinator")
    worker, _ = role("worker", "--coordinator", f"http://{address}", "--listen", "127.0.0.1:0", "--cores", CORES)
    costs, rates = {count: [] for count in counts}, {count: [] for count in counts}
    try:
        for _ in range(ROUNDS):
            for count in counts:
                before = cpu_seconds(worker)
                run = report(file, "--coordinator", f"http://{address}", "--consumers", count, "--limit", limits[count])
                costs[count].append(1e6 * (cpu_seconds(worker) - before) / run["rows"])
                rates[count].append(steady(run))
    finally:
        worker.terminate()
        coordinator.terminate()
    one = statistics.median(costs[counts[0]])
    print("\n| text over gRPC, consumer sessions | rows/s | worker's CPU µs per row | relative to 1 |\n|---:|---:|---:|---:|")
    for count in counts:
        cost = statistics.median(costs[count])
        print(f"| {count} | {statistics.median(rates[count]):,.0f} | {cost:.3f} | {cost / one:.2f} |", flush=True)


def fed_rate(scratch, file, workers, consumers, worker_rate):
    """Returns the rows per second that `consumers` of one job receive from workers that each compute `worker_rate` rows per second."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    processes = []
    try:
        coordinator, address = role("coordinator", "--auto-cache", "off", "--listen", "127.0.0.1:0", "--data-dir", folder)
        processes.append(coordinator)
        url = f"http://{address}"
        for _ in range(workers):
            worker, _ = role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", 1)
            processes.append(worker)
        limit = FEEDING_SECONDS * workers * worker_rate
        return report(file, "--coordinator", url, "--consumers", consumers, "--limit", limit)["rows_per_s"]
    finally:
        for process in processes:
            process.terminate()


def feeding(scratch, pipeline):
    """Prints the rate of consumers relative to the rate of their workers, including the start and the end of a run."""
    print("\n| workers of one core, consumers | rows/s | relative to the workers' rate |\n|---|---:|---:|")
    for workers, consumers, ms in ((16, 1, 5), (64, 1, 5), (1, 1, 1), (1, 8, 1)):
        worker_rate = 1000 // ms
        file = pipeline(f"slow-{ms}", SLOW.format(data=DATA, ms=ms))
        rates = [fed_rate(scratch, file, workers, consumers, worker_rate) for _ in range(ROUNDS)]
        rate = statistics.median(rates)
        print(f"| {workers} of {worker_rate} rows/s, {consumers} | {rate:,.0f} | {rate / workers / worker_rate:.3f} |", flush=True)


def main():
    usage.check(__doc__)
    if not DATA.is_dir():
        sys.exit(f"skipped: no data in {DATA} (set FEEDLINE_SHARED_DATA)")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)

        def pipeline(name, text):
            path = scratch / f"{name}.yaml"
            path.write_text(text)
            return path

        long = pipeline("long", TEXT.format(data=DATA, repeat=LONG))
        long_epochs("text, batches of 64", long, (1, 64, 512), {1: 60_000_000, 64: 60_000_000, 512: 60_000_000})
        short_epochs(pipeline("short", TEXT.format(data=DATA, repeat="")))
        feeding(scratch, pipeline)
        photographs = scratch / "photographs"
        command = [FEEDLINE, "make-data", "images", photographs, "--format", "tfrecord", "--from", DATA / "images", "--shards", "4"]
        subprocess.run(command, check=True, capture_output=True)
        file = pipeline("photographs", PHOTOGRAPHS.format(data=photographs))
        long_epochs("photographs, batches of 128", file, (1, 256), {1: 30_000, 256: 30_000})
        sessions(scratch, long, (1, 256), {1: 20_000_000, 256: 10_000_000})


if __name__ == "__main__":
    main()
