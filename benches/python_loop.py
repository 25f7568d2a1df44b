"""One training loop in Python for `python_client.py`. Prints its results as JSON.

Arguments: name of the loop, pipeline, epochs, and the URL of the coordinator, or "-" to run all roles in this process.
"""

import json
import statistics
import sys
import time

import feedline

# Pause before each series of batches, long enough for all batches of the series to arrive.
PAUSE_SECONDS = 0.3
PAUSES = 50
IN_A_ROW = 5
# Duration of a step relative to the time that workers need for a batch.
EASE = 1.2


def rate(job):
    """Receives all batches at full speed."""
    batches, began = 0, time.perf_counter()
    for _ in job.batches():
        batches += 1
    return {"batches": batches, "rows": job.stats()["rows"], "seconds": time.perf_counter() - began}


def overhead(job):
    """Measures the time to receive an available batch, including all of Feedline's code."""
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
    """Runs two epochs at full speed, and then runs steps that take slightly longer than the workers need per batch."""
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
