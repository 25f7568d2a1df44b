#!/usr/bin/env python3
"""Trains torchvision's ResNet-50 on photographs: with Feedline, with PyTorch's DataLoader, and with tensors that are already on the device.

The three loops run in alternating rounds in separate processes with the same number of cores. The workers of Feedline and of
the DataLoader run on the training machine. Photographs are decoded and cropped for each step. The dataset contains as many
links to photographs as a loop needs. On a GPU, the network computes in bfloat16. `make resnet` builds Feedline in release
mode, installs PyTorch and torchvision under target/peers and runs this script.

Environment variables:

- DEVICE: cuda or cpu. The default is cuda if a GPU is available. On a CPU, training takes nearly all of the time, so the
  results contain little information about data loading.
- CORES: the number of cores of each loop. The default is all cores.
- BATCH and SIZE: the number of photographs in a batch, and their height and width.
- WARM, STEPS and ROUNDS: the number of steps before the measurement, of measured steps, and of rounds.
- PYTHON: another interpreter with PyTorch and torchvision.
- FEEDLINE_SHARED_DATA: the directory of the photographs.
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
SHARED = pathlib.Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data"))
PACKAGE = ROOT / "target/client-python"
LOOP = pathlib.Path(__file__).with_name("resnet_loop.py")
USUAL = {"cuda": {"batch": 256, "steps": 100, "warm": 20, "size": 224}, "cpu": {"batch": 16, "steps": 16, "warm": 2, "size": 224}}
# Titles of the loops. All other loops are compared with the first loop.
LOOPS = {"resident": "tensors on the device", "feedline": "Feedline", "dataloader": "PyTorch's DataLoader"}
CLASSES = 100


def interpreter():
    """Returns an interpreter with PyTorch and torchvision."""
    if "PYTHON" in os.environ:
        return os.environ["PYTHON"]
    sys.path.insert(0, str(ROOT / "benches/peers"))
    import environments

    try:
        environments.ensure("torch")
    except environments.Failed as failed:
        sys.exit(f"skipped: {failed}")
    return str(environments.python("torch"))


def device_of(python):
    asked = os.environ.get("DEVICE")
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if asked == "cuda" and found == "cpu":
        sys.exit("skipped: DEVICE is cuda, but PyTorch found no GPU")
    return asked or found


def links(folder, photographs, rows):
    """Creates a number of links to photographs, in one directory per class."""
    for row in range(rows):
        photograph = photographs[row % len(photographs)]
        label = folder / f"{row % len(photographs) % CLASSES:03}"
        label.mkdir(exist_ok=True)
        (label / f"{row:06}.JPEG").symlink_to(photograph.resolve())


def run(python, source, folder, options):
    command = [python, LOOP, source, folder, json.dumps(options)]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"the loop with {LOOPS[source]} failed: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    usage.check(__doc__)
    photographs = sorted(SHARED.glob("images/*.JPEG"))
    if not photographs:
        sys.exit(f"skipped: no photographs in {SHARED}/images (set FEEDLINE_SHARED_DATA)")
    python = interpreter()
    device = device_of(python)
    options = {name: int(os.environ.get(name.upper(), usual)) for name, usual in USUAL[device].items()}
    options |= {"device": device, "cores": int(os.environ.get("CORES", len(os.sched_getaffinity(0))))}
    rounds = int(os.environ.get("ROUNDS", "3"))
    turns = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = scratch / "photographs"
        folder.mkdir()
        links(folder, photographs, options["batch"] * (options["warm"] + options["steps"] + 1))
        options["index"] = str(scratch / "index")
        for turn in range(rounds):
            order = list(LOOPS)[:: 1 if turn % 2 else -1]
            turns.append({source: run(python, source, folder, options) for source in order})

    def of_turns(figure):
        figures = [figure(turn) for turn in turns]
        return statistics.median(figures), min(figures), max(figures)

    shape = f"batches of {options['batch']}x{options['size']}x{options['size']}x3"
    print(f"| {device}, {options['cores']} cores, {shape}, {rounds} rounds | images/s (range) | relative to tensors (range) | waited |")
    print("|---|---|---|---|")
    for source, title in LOOPS.items():
        rate = "{:,.1f} ({:,.1f} to {:,.1f})".format(*of_turns(lambda turn: turn[source]["rate"]))
        share = "{:.1f} % ({:.1f} to {:.1f})".format(*of_turns(lambda turn: 100 * turn[source]["rate"] / turn["resident"]["rate"]))
        waited, _, _ = of_turns(lambda turn: 100 * turn[source]["waited"])
        print(f"| {title} | {rate} | {share} | {waited:.1f} % |")


if __name__ == "__main__":
    main()
