"""What all runners share: the jobs' numbers, the command line, the measurement and its one line of JSON.

A runner defines its dataset, then calls `measure` with a function that opens an epoch. The clock starts before that
function is called, with everything imported and all server processes running, and stops with the last batch.
"""

import argparse
import json
import pathlib
import time

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
IMAGE_BATCH = 128
TEXT_BATCH = 512
TOKENS = 64
# Rows that streaming readers mix; where a tool can shuffle the whole epoch for nothing it does.
SHUFFLE_BUFFER = 1024
SEED = 7


def arguments():
    """The command line of every runner; see contenders.py for who gets what."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that prepare.py filled")
    parser.add_argument("--rows", type=int, required=True, help="rows of an epoch, which is checked")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--variant", default="", help="which way of the runner's library is measured")
    parser.add_argument("--prepare", action="store_true", help="write the library's own format and exit")
    return parser.parse_args()


def measure(given, version, open_epoch, rows_of=len):
    """Runs the epochs and prints the line. `open_epoch(epoch)` gives an iterable of batches; `rows_of` counts one's rows."""
    result = {"version": version, "rows": given.rows, "seconds": [], "first_batch_seconds": []}
    for epoch in range(given.epochs):
        rows, first = 0, None
        start = time.perf_counter()
        for batch in open_epoch(epoch):
            if first is None:
                first = time.perf_counter() - start
                sample = batch
            rows += rows_of(batch)
        result["seconds"].append(time.perf_counter() - start)
        result["first_batch_seconds"].append(first)
        if rows != given.rows:
            raise SystemExit(f"epoch {epoch} delivered {rows} rows, not {given.rows}")
    print(json.dumps(result | describe(sample)), flush=True)


def describe(batch):
    """What one batch looked like: a contender that delivers something else must not go unnoticed."""
    import numpy

    array = numpy.asarray(batch)
    return {"shape": list(array.shape), "dtype": str(array.dtype), "mean": round(float(array.mean()), 1)}
