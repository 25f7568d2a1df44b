#!/usr/bin/env python3
"""How one worker's rate changes with the number of virtual consumers and of consumer sessions.

Prints Markdown: rows per second and CPU microseconds per row on long epochs, after the first two seconds of each run, and
leases per second on short epochs. Runs of one ratio are interleaved. `make scale` builds in release mode and calls this.
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
SECONDS = 10

TEXT = """
name: text
source: {{ url: "{data}/text/multi30k.train.en", format: text }}
seed: 7
shuffle: {{ window: 4096 }}
operators:
  - repeat: {{ times: {times} }}
  - batch: {{ size: 64 }}
"""
