"""Samples with Feedline: in the process of the loop, or with a worker in another process that writes batches to shared memory."""

import contextlib
import os
import pathlib
import subprocess
import tempfile

import feedline

import runner

MEMORY = "6GiB"


def main() -> None:
    given = runner.arguments()
    rows = feedline.read(url=given.data / "graph", format="graph", seeds="train", seed=1).shuffle(1 << 20)
    pipeline = rows.sample_neighbors(given.batch, given.fanouts, features=["x"], layout=given.layout, remainder="drop")
    with tempfile.TemporaryDirectory() as folder, service(given, pathlib.Path(folder)) as options, pipeline.open(**options) as job:
        runner.measure(given, f"Feedline {feedline.__version__}", job, size_of)


@contextlib.contextmanager
def service(given, folder: pathlib.Path):
    """Yields the options of a job. Starts a coordinator and a worker in a process, unless they are embedded."""
    if given.transport == "embedded":
        yield {"cores": given.threads, "memory": MEMORY, "index_dir": folder / "index", "cache_dir": folder / "cache"}
        return
    flags = ("--workers", 1, "--cores", given.threads, "--memory", MEMORY, "--listen", "127.0.0.1:0")
    command = [os.environ["FEEDLINE_BINARY"], "up", *flags, "--data-dir", folder / "data", "--cache-dir", folder / "cache"]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert " listening on " in line, line
        yield {"coordinator": "http://" + line.split()[-1], "transport": given.transport}
    finally:
        process.terminate()
        process.wait()


def size_of(batch) -> tuple[int, int]:
    nodes = len(batch["n_id"])
    assert len(batch["x"]) == nodes
    return nodes, len(batch["row"])


if __name__ == "__main__":
    main()
