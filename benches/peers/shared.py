"""Shared code of all runners: parameters of the jobs, command line, measurement, and output as one line of JSON.

A runner defines its dataset and calls `measure` with a function that opens an epoch. The clock starts before this function
is called, after imports and with all server processes running. The rate is measured from the first batch to the last batch.
The time to the first batch is reported separately.
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
SHARDS = 8
# Shuffle buffer of streaming readers, in rows. Tools that can shuffle a whole epoch without extra cost do so.
SHUFFLE_BUFFER = 1024
SEED = 7


def arguments():
    """Parses the command line, which is the same for all runners. contenders.py defines the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="directory of the data from prepare.py")
    parser.add_argument("--rows", type=int, required=True, help="expected number of rows of an epoch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--epoch", type=int, default=1, help="epoch to measure; earlier epochs run before it [default: %(default)s]")
    parser.add_argument("--variant", default="", help="variant of the library to measure")
    parser.add_argument("--prepare", type=pathlib.Path, help="write the data in the library's own format to this directory and exit")
    return parser.parse_args()


def measure(given, version, open_epoch, works_ahead=False):
    """Runs the epochs and prints a line for the last epoch. `open_epoch(epoch)` returns an iterable of batches.

    `works_ahead`: the whole epoch is computed before its first batch, so the rate is measured from the opening.
    """
    for epoch in range(given.epoch):
        rows, first = 0, None
        start = time.perf_counter()
        for batch in open_epoch(epoch):
            rows += len(batch)
            if first is None:
                first, first_rows, sample = time.perf_counter() - start, rows, batch
        seconds = time.perf_counter() - start
        if rows != given.rows:
            raise SystemExit(f"epoch {epoch + 1} delivered {rows} rows, not {given.rows}")
    check(sample)
    done = (rows, seconds) if works_ahead else (rows - first_rows, seconds - first)
    print(json.dumps(result(version, *done, first)), flush=True)


def check(batch):
    """Checks that a contender delivers the expected batches."""
    import numpy

    array = numpy.asarray(batch)
    values = {"uint8": SIZE * SIZE * 3, "int32": TOKENS, "int64": TOKENS}.get(str(array.dtype))
    if array[0].size != values:
        raise SystemExit(f"received an unexpected batch of {array.dtype} {list(array.shape)}")


def result(version, rows, seconds, first_batch_seconds):
    """Returns the result of one round, with `rows` in `seconds`."""
    return {"version": version, "rate": rows / seconds, "first_batch_seconds": first_batch_seconds}
