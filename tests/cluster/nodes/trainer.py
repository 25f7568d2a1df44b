"""The training loop of a pod: receives all batches of a job, and prints JSON lines.

    trainer.py PIPELINE --rows N [--epochs E] [--steps MS,SECOND:MS,...]

`{"event": "first", "at": T}` follows the first batch, and `{"event": "step", "at": T, "ms": M}` each change of the time
of a step. `{"event": "epoch", "digest": D}` follows each epoch, with a digest of all batches in order.
`{"arrivals": [T, ...]}` has the times of batches. The last line has the number of rows, and how many were missing or
repeated in an epoch. All times are Unix times in seconds. The program ends at the end of an epoch once the file
/tmp/stop exists.
"""

import argparse
import hashlib
import json
import os
import time

import feedline
import numpy as np

# Batches whose times are in one line.
LINE = 20
STOP = "/tmp/stop"


def main() -> None:
    args = parse_arguments()
    names = ["epochs", "name", "rank", "world_size", "buffer", "patience"]
    job = feedline.open(args.pipeline, **{name: getattr(args, name) for name in names})
    received = np.zeros((args.epochs, args.rows), dtype=np.int32)
    digest = hashlib.sha256()
    steps = parse_steps(args.steps)
    arrivals = []
    begun = None
    epochs = 0
    # Seconds by which the steps so far were too long, as they are on a busy machine.
    excess = 0.0
    for batch in job.batches():
        now = time.time()
        if begun is None:
            begun = now
            say(event="first", at=round(now, 3))
        if batch.epoch > epochs:
            epochs = end_epoch(epochs, digest)
            if os.path.exists(STOP):
                break
        arrivals.append(round(now, 3))
        ids = np.ascontiguousarray(batch["id"])
        np.add.at(received[batch.epoch], ids, 1)
        digest.update(ids.tobytes())
        if len(arrivals) == LINE:
            say(arrivals=arrivals)
            arrivals = []
        if len(steps) > 1 and now >= begun + steps[1][0]:
            steps.pop(0)
            say(event="step", at=round(now, 3), ms=steps[0][1])
        step = steps[0][1] / 1000
        time.sleep(max(0.0, step - excess - (time.time() - now)))
        excess = min(max(0.0, excess + time.time() - now - step), step)
    else:
        epochs = end_epoch(epochs, digest)
    complete = received[:epochs]
    say(arrivals=arrivals)
    say(event="end", rows=int(complete.sum()), missing=int((complete == 0).sum()), repeated=int((complete > 1).sum()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline")
    parser.add_argument(
        "--rows", type=int, required=True, help="rows of the dataset, whose column `id` numbers them from 0"
    )
    parser.add_argument("--epochs", type=int, default=1, help="the largest number of epochs")
    parser.add_argument("--steps", default="0", help="milliseconds of a step; `200,40:50` changes them after 40 s")
    parser.add_argument("--name")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--buffer", type=int, help="bytes of received batches; a small buffer hides no wait")
    parser.add_argument("--patience", type=float, help="seconds without a coordinator")
    return parser.parse_args()


def end_epoch(epoch: int, digest: "hashlib._Hash") -> int:
    """Prints the digest of all batches up to the end of an epoch. Returns the number of epochs."""
    say(event="epoch", digest=digest.hexdigest()[:32])
    return epoch + 1


def parse_steps(text: str) -> list[tuple[float, float]]:
    """Returns pairs of a second and the milliseconds of a step from this second on."""
    first, *changes = text.split(",")
    pairs = [change.split(":") for change in changes]
    return [(0.0, float(first)), *((float(second), float(ms)) for second, ms in pairs)]


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
