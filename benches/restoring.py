#!/usr/bin/env python3
"""Measures the time from `load_state_dict` to the next batch, for states from the beginning, the middle and the end of an epoch.

Restores jobs of three datasets:

- photographs as TFRecord, with a crop of 224, a flip and batches of 64
- 29,000 sentences, with a filter and batches of 128
- 2,000,000 generated lines, with a window of 65,536 and batches of 256

Each job is restored in three ways: in the process that runs all roles, in a new process that starts all roles, and on a
coordinator with two worker processes. Prints a Markdown table of medians in seconds with their ranges. Fails if a median is
one second or more.

`make restoring` builds Feedline in release mode and runs this script with the package in `target/client-python`. ROUNDS is
the number of rounds (5). FEEDLINE_SHARED_DATA is the directory of the photographs and sentences. FEEDLINE_BINARY is the
path of another binary.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import usage

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data")).resolve()
FEEDLINE = os.environ.get("FEEDLINE_BINARY", ROOT / "target/release/feedline")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
PLACES = {"early": 0.01, "middle": 0.5, "late": 0.97}
MOST_SECONDS = 1.0
MADE_UP_ROWS = 2_000_000
WAYS = {"the same process": "rewound", "a new process, its start included": "started", "coordinator and workers": "served"}


def pipelines(feedline, scratch):
    """Returns the pipelines with their approximate number of batches per epoch."""
    found = {}
    if (SHARED / "images").is_dir():
        command = ("make-data", "images", scratch / "images", "--format", "tfrecord", "--from", SHARED / "images", "--shards", "4")
        subprocess.run([FEEDLINE, *command], check=True, capture_output=True)
        features = {"image": "image/encoded", "label": "image/class/label"}
        read = feedline.read(url=scratch / "images/*.tfrecord", format="tfrecord", features=features, seed=1, name="photographs")
        # 400 photographs, repeated 16 times, so that an epoch has a hundred batches.
        whole = read.shuffle(window=1024).repeat(16).random_resized_crop(column="image", size=[224, 224]).random_horizontal_flip("image")
        found["photographs"] = (whole.batch(64), 16 * 400 // 64)
    if (SHARED / "text").is_dir():
        read = feedline.read(url=SHARED / "text/multi30k.train.en", format="text", seed=1, name="sentences")
        found["sentences, filtered"] = (read.shuffle(window=4096).filter(where="text LIKE 'A %'").batch(128), 16_000 // 128)
    lines = scratch / "lines.txt"
    lines.write_text("".join(f"line {row}\n" for row in range(MADE_UP_ROWS)))
    read = feedline.read(url=lines, format="text", seed=1, name="made-up")
    found["2,000,000 generated lines"] = (read.shuffle(window=65_536).batch(256), MADE_UP_ROWS // 256)
    return found


@contextlib.contextmanager
def cluster(scratch):
    """Starts a coordinator and two workers as processes, and yields the URL of the coordinator."""
    started = []

    def role(*arguments):
        process = subprocess.Popen([str(part) for part in (FEEDLINE, *arguments)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process.stdout.readline().split()[-1]

    try:
        url = "http://" + role("coordinator", "--listen", "127.0.0.1:0", "--data-dir", scratch / "coordinator", "--auto-cache", "off")
        for _ in range(2):
            role("worker", "--coordinator", url, "--listen", "127.0.0.1:0", "--cores", "1", "--memory", "256MiB")
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


def state_at(feedline, pipeline, batches, name, **service):
    """Returns the state of one of two ranks after both received a number of batches."""
    jobs = [feedline.open(pipeline, rank=rank, world_size=2, name=name, **service) for rank in range(2)]
    loops = [job.batches() for job in jobs]
    for _ in range(max(2, batches // 2)):
        for loop in loops:
            next(loop)
    begun = time.perf_counter()
    state = jobs[1].state_dict()
    seconds = time.perf_counter() - begun
    for loop, job in zip(loops, jobs, strict=True):
        loop.close()
        job.close()
    return state, seconds


def first_batch(job, state):
    """Returns the seconds from loading the state to the next batch."""
    begun = time.perf_counter()
    job.load_state_dict(state)
    loop = job.batches()
    next(loop)
    seconds = time.perf_counter() - begun
    loop.close()
    return seconds


def measure(feedline, pipeline, state, way, url, options):
    if way == "started":
        begun = time.perf_counter()
        with feedline.open(pipeline, state=state, **options) as job:
            next(job.batches())
            return time.perf_counter() - begun
    service = options if way == "rewound" else {"coordinator": url}
    with feedline.open(pipeline, virtual_consumers=2, **service) as job:
        next(job.batches())
        return first_batch(job, state)


def main():
    usage.check(__doc__)
    sys.path.insert(0, str(ROOT / "target/client-python"))
    import feedline

    figures, states = {}, []
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        options = {"cores": 2, "memory": "512MiB", "index_dir": scratch / "index", "auto_cache": False}
        with cluster(scratch) as url:
            for title, (pipeline, batches) in pipelines(feedline, scratch).items():
                for place, share in PLACES.items():
                    name = f"{title} {place} {os.getpid()}"
                    state, seconds = state_at(feedline, pipeline, int(share * batches), name, coordinator=url)
                    states.append(seconds)
                    for way in WAYS.values():
                        # The first round indexes the data.
                        turns = [measure(feedline, pipeline, state, way, url, options) for _ in range(ROUNDS + 1)][1:]
                        figures[title, place, way] = turns
    print(f"| from `load_state_dict` to the next batch, seconds, median and range of {ROUNDS} | early | middle | late |")
    print("|---|---|---|---|")
    for title in dict.fromkeys(key[0] for key in figures):
        for way_title, way in WAYS.items():
            turns = [figures[title, place, way] for place in PLACES]
            cells = (f"{statistics.median(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in turns)
            print(f"| {title}: {way_title} | {' | '.join(cells)} |")
    print(f"\n`state_dict()` of one of two ranks: median {1000 * statistics.median(states):.1f} ms, maximum {1000 * max(states):.1f} ms")
    slow = [key for key, turns in figures.items() if statistics.median(turns) >= MOST_SECONDS]
    if slow:
        sys.exit(f"missed the goal of one second per restore: {slow}")


if __name__ == "__main__":
    main()
