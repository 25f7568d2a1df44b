"""One training loop in Python, for `python_client.py`: what it did goes to standard output as JSON.

Takes the loop's name, the pipeline, epochs and the coordinator's URL; "-" where all runs in this process.
"""

import json
import statistics
import sys
import time

import feedline

# Long enough for the batches that follow to be there, as many as are taken in a row.
PAUSE_SECONDS = 0.3
PAUSES = 50
IN_A_ROW = 5
# A loop that takes a fifth longer for a step than the workers for a batch can be kept fed.
EASE = 1.2


def rate(job):
    """All batches, as fast as they come."""
    batches, began = 0, time.perf_counter()
    for _ in job.batches():
        batches += 1
    return {"batches": batches, "rows": job.stats()["rows"], "seconds": time.perf_counter() - began}


def overhead(job):
    """What it takes to get a batch that is here already, all of Feedline included."""
    taken, loop = [], job.batches()
    next(loop)
    for _ in range(PAUSES):
        time.sleep(PAUSE_SECONDS)
        for _ in range(IN_A_ROW):
            began = time.perf_counter()
            batch = next(loop)
            taken.append(time.perf_counter() - began)
            del batch
    loop.close()
    taken.sort()
    return {"median": statistics.median(taken), "most": taken[len(taken) * 95 // 100]}


def fed(job):
    """Two epochs as fast as they come; then steps that take a little longer than a batch took."""
    loop = job.batches()
    next(loop)
    fast, began = 0, time.perf_counter()
    while fast < 2 * len(job):
        next(loop)
        fast += 1
    step = EASE * (time.perf_counter() - began) / fast
    before = job.stats()
    for _ in loop:
        time.sleep(step)
    after = job.stats()
    waited = after["stall_seconds"] - before["stall_seconds"]
    stepped = after["step_seconds"] - before["step_seconds"]
    return {"step": step, "batches": after["batches"] - before["batches"], "stall": waited / (waited + stepped)}


def main():
    name, pipeline, epochs, coordinator, options = sys.argv[1:]
    job = feedline.open(
        pipeline, epochs=int(epochs), coordinator=None if coordinator == "-" else coordinator, **json.loads(options)
    )
    with job:
        print(json.dumps({"rate": rate, "overhead": overhead, "fed": fed}[name](job)))


if __name__ == "__main__":
    main()
