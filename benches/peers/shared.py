"""What all runners share: the jobs' numbers, the command line, the measurement and its one line of JSON.

A runner defines its dataset, then calls `measure` with a function that opens an epoch. The clock starts before that
function is called, with everything imported and all server processes running. The rate is counted from the first batch
to the last; how long the first one took stands beside it.
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
# Rows that streaming readers mix; where a tool can shuffle the whole epoch for nothing it does.
SHUFFLE_BUFFER = 1024
SEED = 7


def arguments():
    """The command line of every runner; see contenders.py for who gets what."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that prepare.py filled")
    parser.add_argument("--rows", type=int, required=True, help="rows of an epoch, which is checked")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--epoch", type=int, default=1, help="the epoch that is measured, after those before it")
    parser.add_argument("--variant", default="", help="which way of the runner's library is measured")
    parser.add_argument("--prepare", type=pathlib.Path, help="write the library's own format to this folder and exit")
    return parser.parse_args()


def measure(given, version, open_epoch, works_ahead=False):
    """Runs the epochs and prints the line of the last. `open_epoch(epoch)` gives an iterable of batches.

    `works_ahead`: all of an epoch's work is done before its first batch, so the rate counts from the opening.
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
    """A contender that delivers something else must not go unnoticed."""
    import numpy

    array = numpy.asarray(batch)
    values = {"uint8": SIZE * SIZE * 3, "int32": TOKENS, "int64": TOKENS}.get(str(array.dtype))
    if array[0].size != values:
        raise SystemExit(f"a batch of {array.dtype} {list(array.shape)} came")


def result(version, rows, seconds, first_batch_seconds):
    """One turn of a contender; `rows` came in `seconds`."""
    return {"version": version, "rate": rows / seconds, "first_batch_seconds": first_batch_seconds}
