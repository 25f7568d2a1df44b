#!/usr/bin/env python3
"""Measures the cost of mutual TLS and tokens for batches of photographs over TCP on loopback.

A worker with two cores crops photographs to 224 in batches of 128. All roles are separate processes. Rounds without TLS and
tokens alternate with rounds that use both on every link. Prints a Markdown table with the medians of the rows per second
and of the worker's CPU seconds per 1,000 rows, and with the ratios of the rounds.

`make secure-cost` builds Feedline in release mode and runs this script. ROUNDS is the number of rounds (5).
FEEDLINE_SHARED_DATA is the directory of the photographs.
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
FEEDLINE = ROOT / "target/release/feedline"
CORES = 2
ROUNDS = int(os.environ.get("ROUNDS", "5"))
EPOCHS = 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

PIPELINE = """
name: secure
source: {{ url: "{data}/*.tfrecord", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
"""


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Roles:
    """A coordinator, a worker, and the arguments with which clients connect to them."""

    def __init__(self, scratch, is_secure):
        keys, self.client, coordinator, worker = scratch / "keys", (), (), ()
        if is_secure:
            both = ("--tls-ca", keys / "ca.pem", "--tls-cert", keys / "role.pem", "--tls-key", keys / "role-key.pem")
            both += ("--allow-url", scratch / "data")
            coordinator = ("--secret-file", keys / "secret", *both)
            worker = ("--token-file", keys / "worker.token", *both)
            own = ("--tls-cert", keys / "client.pem", "--tls-key", keys / "client-key.pem")
            self.client = ("--token-file", keys / "client.token", "--tls-ca", keys / "ca.pem", *own)
        place = scratch / ("secure" if is_secure else "plain")
        self.coordinator, address = self.start("coordinator", "--auto-cache", "off", "--data-dir", place, *coordinator)
        self.url = f"{'https' if is_secure else 'http'}://{address}"
        self.worker, _ = self.start("worker", "--coordinator", self.url, "--cores", CORES, *worker)

    @staticmethod
    def start(role, *arguments):
        command = [str(part) for part in (FEEDLINE, role, "--listen", "127.0.0.1:0", *arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return process, process.stdout.readline().split()[-1]

    def run(self, pipeline):
        """Returns the rows per second, and the worker's CPU seconds per 1,000 rows."""
        before = cpu_seconds(self.worker)
        where = ("--coordinator", self.url, "--transport", "tcp", *self.client)
        printed = output(FEEDLINE, "run", pipeline, *where, "--epochs", EPOCHS, "--no-digest", "--report", "json")
        report = json.loads(printed.splitlines()[-1])
        return report["rows_per_s"], (cpu_seconds(self.worker) - before) / report["rows"] * 1_000

    def end(self):
        for process in (self.worker, self.coordinator):
            process.terminate()
            process.wait()


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make secure-cost`")
    if not PHOTOS.is_dir():
        sys.exit(f"skipped: no photographs in {PHOTOS} (set FEEDLINE_SHARED_DATA)")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        output(FEEDLINE, "make-data", "images", scratch / "data", "--format", "tfrecord", "--from", PHOTOS, "--shards", "4")
        output(FEEDLINE, "keys", "new", scratch / "keys", "--host", "127.0.0.1")
        pipeline = scratch / "secure.yaml"
        pipeline.write_text(PIPELINE.format(data=scratch / "data"), encoding="utf-8")
        found, roles = {False: [], True: []}, {}
        try:
            for is_secure in found:
                roles[is_secure] = Roles(scratch, is_secure)
                # The first run on a cluster indexes the data.
                roles[is_secure].run(pipeline)
            for turn in range(ROUNDS):
                for is_secure in (True, False) if turn % 2 else (False, True):
                    found[is_secure].append(roles[is_secure].run(pipeline))
                    print(f"{'secure' if is_secure else 'plain'}: {found[is_secure][-1]}", file=sys.stderr)
        finally:
            for started in roles.values():
                started.end()
        print(f"| photographs by TCP, {CORES} cores, medians of {ROUNDS} | plain | TLS and tokens | ratio |\n|---|---|---|---|")
        for place, name in enumerate(("rows per second", "the worker's CPU seconds per 1,000 rows")):
            plain, secure = ([turn[place] for turn in found[is_secure]] for is_secure in (False, True))
            ratios = sorted(with_tls / without for without, with_tls in zip(plain, secure))
            medians = " | ".join(f"{statistics.median(figures):.4g}" for figures in (plain, secure))
            print(f"| {name} | {medians} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |")


if __name__ == "__main__":
    main()
