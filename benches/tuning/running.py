"""Measures the rate of a running Feedline job from its metrics, and reads the bottleneck from `feedline explain`."""

import dataclasses
import json
import subprocess
import time

import quiet
import rows
import shapes
from delivered import Delivered, Ended, free_port
from paths import Failed, output, stop

# Number of cores on which all contenders run.
CORES = 2
# Number of epochs that no run can finish.
EPOCHS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of a user: limits of operators in the file, cores and workers on the command line."""

    pins: tuple = ()
    cores: int | None = None
    workers: int = 1

    def arguments(self):
        cores = () if self.cores is None else ("--cores", self.cores)
        return (*cores, "--workers", self.workers)

    def title(self):
        pins = [f"{name} {limit}" for name, limit in self.pins]
        cores = [] if self.cores is None else [f"{self.cores} core{'s' if self.cores > 1 else ''}"]
        workers = [f"{self.workers} workers"] if self.workers > 1 else []
        return ", ".join([*pins, *cores, *workers]) or "nothing set"


NAIVE = Setting(pins=(("*", 1),), cores=1)
TUNED = Setting()


class Feedline:
    """A Feedline binary and the directory of its indexes."""

    def __init__(self, binary):
        self.binary = binary
        self.index = ("--index-dir", rows.FOLDER / "index")

    def file(self, shape, setting):
        """Writes the pipeline file of a setting."""
        path = rows.FOLDER / f"{shape.key}.yaml"
        path.write_text(shapes.pipeline(shape, rows.FOLDER, dict(setting.pins)))
        return path

    def prepare(self, shape):
        output(self.binary, "index", self.file(shape, TUNED), *self.index)

    def rate(self, shape, setting, after, seconds):
        """Returns the rows per second, and the share of the cores that other programs used. Measures `seconds` from the first batch after `after` seconds."""
        return quiet.undisturbed(lambda: self.turn(shape, setting, after, seconds), f"{shape.title}, {setting.title()}")

    def turn(self, shape, setting, after, seconds):
        """Returns the rate of one run, and the share of the cores that other programs used."""
        port = free_port()
        arguments = (*self.index, *setting.arguments(), "--auto-cache", "off", "--epochs", EPOCHS, "--no-digest", "--http", f"127.0.0.1:{port}")
        command = [self.binary, "run", self.file(shape, setting), *arguments]
        start = time.monotonic()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            delivered = Delivered(process, port)
            begun, rows_before = delivered.next_change(start + after)
            watch = quiet.Watch(process.pid)
            ended, rows_after = delivered.next_change(begun + seconds)
            others = watch.others()
        except Ended as end:
            raise Failed(str(end)) from None
        finally:
            stop(process)
        return (rows_after - rows_before) / (ended - begun), others

    def explain(self, shape, setting, seconds):
        """Returns the JSON of `feedline explain`."""
        arguments = (*self.index, *setting.arguments(), "--seconds", seconds, "--format", "json")
        return json.loads(output(self.binary, "explain", self.file(shape, setting), *arguments).splitlines()[-1])
