"""Measures one pipeline: the output of `feedline explain`, the rate of `feedline run`, and the effect of a suggested improvement."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from bottlenecks.shapes import named, op
from bottlenecks.store import Store
from delivered import Delivered, free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE_BIN", ROOT / "target/release/feedline"))
EXPLAIN_S = int(os.environ.get("EXPLAIN_S", "4"))
RUN_S = float(os.environ.get("RUN_S", "5"))
# Seconds until plans have taken effect. Concurrent reads of a distant or slow store increase in steps and need more time.
SETTLED_S, SETTLED_READS_S = 4, 9
# Threads or permits limit a job if they are in use for more than this share of the time.
BUSY = 0.75


def output(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout


@dataclasses.dataclass
class Data:
    """The rows of a directory, and a smaller set of the same kind for passes over a cache."""

    form: str
    folder: pathlib.Path
    few: pathlib.Path
    rows: int
    few_rows: int
    row_bytes: float
    # Share of the rows that pass the filter `label < 5`.
    kept: float = 1.0


def make_sets(folder, share=1.0):
    """Generates the datasets of the pipelines, or a fraction of their rows."""
    sets = {}
    kinds = (("rows as jsonl", "table", "jsonl", 60_000, 4_000), ("rows as tfrecord", "table", "tfrecord", 60_000, 4_000))
    for name, kind, form, rows, few in (*kinds, ("photographs", "images", "tfrecord", 8_000, 1_600)):
        places = []
        rows, few = int(share * rows), int(share * few)
        for part, count in (("all", rows), ("few", few)):
            place = folder / f"{kind}-{form}-{part}"
            if not place.exists():
                size = ("--size", "96", "96") if kind == "images" else ()
                output(FEEDLINE, "make-data", kind, place, "--rows", count, "--format", form, "--shards", 4, *size)
            places.append(place)
        stored = sum(path.stat().st_size for path in places[0].iterdir())
        sets[name] = Data(form, *places, rows, few, stored / rows)
    lines = [json.loads(line) for path in sets["rows as jsonl"].folder.iterdir() for line in path.open()]
    kept = sum(line["label"] < 5 for line in lines) / len(lines)
    for name in ("rows as jsonl", "rows as tfrecord"):
        sets[name].kept = kept
    return sets


class Bench:
    """Runs pipelines with their own files in a directory."""

    def __init__(self, folder, sets, caches=True):
        self.folder, self.sets, self.caches = folder, sets, caches
        self.index = ("--index-dir", folder / "index")

    @contextlib.contextmanager
    def pipeline(self, shape, operators=None, few=False):
        """Writes the pipeline file, indexes its data and then applies the limits of the store."""
        data = self.sets[shape.data]
        place = data.few if few else data.folder
        is_far = shape.store_bytes_per_s or shape.store_latency_s
        with Store(place) if is_far else contextlib.nullcontext() as store:
            features = "{ image: image/encoded }" if shape.data == "photographs" else "{ label: label, payload: payload }"
            url = json.dumps(store.urls if is_far else f"{place}/*")
            source = f"source: {{ url: {url}, format: {data.form}, features: {features} }}"
            lines = [f"name: seed-{shape.seed}", source, "seed: 7", f"shuffle: {{ window: {shape.window} }}", "operators:"]
            lines += [f"  - {each.kind}: {json.dumps(each.parameters)}" for each in operators or shape.operators]
            file = self.folder / f"seed-{shape.seed}.yaml"
            file.write_text("\n".join([*lines, f"  - batch: {{ size: {shape.batch} }}", ""]))
            # Rebuild the index, because a previous store may have used the same address.
            output(FEEDLINE, "index", "--rebuild", file, *self.index)
            if is_far:
                store.slow(shape.store_bytes_per_s, shape.store_latency_s)
            yield file

    def flags(self, shape, **more):
        settings = {"cores": shape.cores, "workers": shape.workers, "step-ms": shape.step_ms} | more
        return [str(part) for name, value in settings.items() for part in (f"--{name}", value)] + list(self.index)

    def explain(self, shape):
        with self.pipeline(shape) as file:
            return json.loads(output(FEEDLINE, "explain", file, "--seconds", EXPLAIN_S, "--format", "json", *self.flags(shape)).splitlines()[-1])

    def run(self, shape, operators=None, **more):
        """Returns the rows per second of a job after its start, and the share of the time in which its limiting threads had a core."""
        port = free_port()
        arguments = ("--auto-cache", "off", "--epochs", 1_000_000, "--no-digest", "--report", "json", "--http", f"127.0.0.1:{port}")
        with self.pipeline(shape, operators) as file:
            command = [str(part) for part in (FEEDLINE, "run", file, *arguments, *self.flags(shape, **more))]
            begun = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                delivered = Delivered(process, port)
                settled = SETTLED_READS_S if shape.store_bytes_per_s or shape.store_latency_s else SETTLED_S
                start, rows_before = delivered.next_change(begun + settled)
                end, rows_after = delivered.next_change(start + RUN_S)
                process.send_signal(signal.SIGINT)
                report = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
            finally:
                process.kill()
        return (rows_after - rows_before) / (end - start), on_core(report, more.get("cores", shape.cores))

    def later_epochs(self, shape, expected, operators):
        """Returns the rows per second of the epochs after the first, from two runs with different numbers of epochs."""
        rows = self.sets[shape.data].few_rows
        epochs = 1 + min(60, max(4, int(RUN_S * expected / rows)))
        reports = []
        with self.pipeline(shape, operators, few=True) as file:
            for passes in (1, epochs):
                arguments = ("--auto-cache", "off", "--epochs", passes, "--no-digest", "--report", "json", "--cache-dir", self.folder / f"rows-{shape.seed}-{passes}")
                reports.append(json.loads(output(FEEDLINE, "run", file, *arguments, *self.flags(shape)).splitlines()[-1]))
        later = difference(*reports)
        return later["rows"] / later["seconds"] / on_core(later, shape.cores)

    def apply(self, shape, remedy):
        """Returns the rows per second with an improvement, without the effect of other programs. Returns None if this machine cannot apply it."""
        action, expected = remedy["action"], remedy["predicted_rows_per_s"]
        if found := re.fullmatch(r"allow (\d+) concurrent executions of `(.+)`", action):
            operators = [op(each.kind, **(each.parameters | {"parallelism": int(found[1])} if each.name == found[2] else each.parameters)) for each in shape.operators]
            return corrected(self.run(shape, operators))
        if found := re.fullmatch(r"give the job (\d+) (core|worker)s?", action):
            workers = int(found[1]) if found[2] == "worker" else shape.workers
            cores = int(found[1]) if found[2] == "core" else shape.cores * workers // shape.workers
            if cores > os.cpu_count():
                return None
            return corrected(self.run(shape, cores=cores, workers=workers))
        if self.caches and (found := re.fullmatch(r"cache the output of `(.+)` (in memory|on disk) \(.*\)", action)):
            names = [each.name for each in shape.operators]
            at = 1 + names.index(found[1]) if found[1] in names else 0
            cache = op("cache", tier="memory" if found[2] == "in memory" else "disk")
            return self.later_epochs(shape, expected, named([*shape.operators[:at], cache, *shape.operators[at:]]))
        return None


def is_fed(report):
    """Returns whether the consumer waited for less than half of the time."""
    return report["stall_seconds"] < 0.5 * report["seconds"]


def on_core(report, cores):
    """Returns the share of the time in which the limiting threads had a core, or 1 if threads do not limit the job."""
    operators = [each for each in report["operators"] if each["name"] != "source"]
    seconds = report["seconds"]
    if is_fed(report):
        return 1.0
    at_work = [each["busy_seconds"] - each["latency_seconds"] for each in operators]
    cpu = [each["cpu_seconds"] for each in operators]
    if sum(at_work) > BUSY * cores * seconds:
        return min(1.0, sum(cpu) / sum(at_work))
    for busy, used, each in zip(at_work, cpu, operators):
        if each["parallelism"] and used > 0 and each["busy_seconds"] > BUSY * each["parallelism"] * seconds:
            return min(1.0, used / busy)
    return 1.0


def difference(first, both):
    """Returns the counters of a longer run minus the counters of a shorter run of the same job."""
    later = {name: both[name] - first[name] for name in ("rows", "stall_seconds")}
    later["seconds"] = max(both["seconds"] - first["seconds"], 1e-3)
    counted = ("busy_seconds", "latency_seconds", "cpu_seconds")
    pairs = zip(first["operators"], both["operators"])
    later["operators"] = [one | {name: one[name] - other[name] for name in counted} for other, one in pairs]
    return later


def corrected(measured):
    """Returns the rate that would be measured if no other program used the cores."""
    rate, share = measured
    return rate / share
