"""Processes: forks, Ctrl-C, threads, and the end of loops and programs."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import binary, run_python


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("lines") / "lines.txt"
    file.write_text("\n".join(f"line {number}" for number in range(500)))
    return file


def program(lines: Path, body: str) -> str:
    return f"import feedline\npipeline = feedline.read(url={str(lines)!r}, format='text').batch(10)\nlocal = dict(cores=1, index_dir={str(lines.parent / 'index')!r})\n{body}"


def test_a_forked_child_is_rejected_and_a_spawned_child_works(lines: Path) -> None:
    body = """
import os, sys
job = pipeline.open(**local)
loop = iter(job)
next(loop)
if os.fork() == 0:
    for attempt in (lambda: next(loop), lambda: next(iter(pipeline.open(**local)))):
        try:
            attempt()
        except feedline.WrongUse as error:
            assert "spawn" in str(error), error
        else:
            os._exit(3)
    job.close()
    os._exit(7)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7
next(loop)
"""
    done = run_python(program(lines, body))
    assert done.returncode == 0, done.stderr
    spawned = f"""
import multiprocessing, sys
sys.path.insert(0, {str(lines.parent)!r})
import spawned
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        assert pool.map(spawned.rows, range(2)) == [500, 500]
"""
    (lines.parent / "spawned.py").write_text(
        program(lines, "def rows(_):\n    with pipeline.open(**local) as job:\n        return sum(batch.size for batch in job)\n")
    )
    done = run_python(spawned)
    assert done.returncode == 0, done.stderr


def test_a_child_that_was_forked_before_the_first_batch_opens_its_own_job(lines: Path) -> None:
    body = """
import os
job = pipeline.open(epochs=1, **local)
if os.fork() == 0:
    os._exit(7 if sum(batch.size for batch in job) == 500 else 3)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 7
assert sum(batch.size for batch in job) == 500
"""
    done = run_python(program(lines, body))
    assert done.returncode == 0, done.stderr


def test_a_job_cannot_be_sent_to_data_loader_workers(lines: Path, local: dict[str, Any]) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = importlib.import_module("feedline.torch").IterableDataset(feedline.read(url=lines, format="text").batch(10), **local)
    with pytest.raises(feedline.WrongUse, match="cannot be sent to another process; open it there"):
        next(iter(data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")))


def test_ctrl_c_cancels_a_wait(lines: Path) -> None:
    # A process in the background ignores the signal by default.
    body = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
job = feedline.read(url=pipeline.check()["source"]["url"], format="text").wait(60_000).batch(1).open(**local)
try:
    loop = iter(job)
    print("waiting", flush=True)
    next(loop)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program(lines, body)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    # A batch would take a minute.
    assert process.stdout.readline() == "interrupted\n"
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_wait_releases_the_gil(lines: Path, local: dict[str, Any]) -> None:
    slow = feedline.read(url=lines, format="text").wait(2_000).batch(1)
    job = slow.open(**local)
    counted = 0
    got = threading.Event()

    def take() -> None:
        next(iter(job))
        got.set()

    thread = threading.Thread(target=take)
    thread.start()
    while not got.is_set():
        counted += 1
    thread.join()
    job.close()
    assert counted > 10_000, "the wait held the GIL"


def test_leaving_a_loop_cancels_its_job(lines: Path, clusters: Any, run_name: Any) -> None:
    url = clusters(1)
    pipeline = feedline.read(url=lines, format="text", name="left").batch(10)
    name = run_name()
    job = pipeline.open(coordinator=url, name=name)
    for _ in job:
        break
    running = run_python(
        f"import json, subprocess\nprint(subprocess.run([{str(binary())!r}, 'job', 'list', '--json', '--coordinator', {url!r}], capture_output=True, text=True).stdout)"
    )
    assert [found["state"] for found in json.loads(running.stdout) if found["name"].startswith(name)] == ["cancelled"]
    assert sum(batch.size for batch in job) == 490
    job.close()


def test_a_program_exits_without_closing_its_job(lines: Path) -> None:
    done = run_python(program(lines, "job = pipeline.open(**local)\nloop = iter(job)\nprint(next(loop).size)"))
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr


def test_two_runs_with_one_name_are_detected(lines: Path, clusters: Any, run_name: Any) -> None:
    pipeline, name = feedline.read(url=lines, format="text").batch(10), run_name()
    first = pipeline.open(coordinator=clusters(1), name=name)
    loop = iter(first)
    for _ in range(30):
        next(loop)
    first._session.consumer.flush()
    with pytest.raises(feedline.WrongUse, match="is already running, and this rank is at another position"):
        next(iter(pipeline.open(coordinator=clusters(1), name=name)))
    first.close()


def test_stats_and_progress_show_the_fed_fraction(lines: Path, local: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    slow = feedline.read(url=lines, format="text").wait(4, parallelism=1).batch(50)
    with slow.open(progress=True, **local) as job:
        for _ in job:
            pass
        stats = job.stats()
    assert stats["skipped_rows"] == 0 and stats["ignored_columns"] == stats["rounded_columns"] == []
    assert stats["rows"] == 500 and stats["batches"] == 10 and stats["bytes"] > 0
    assert stats["stall_seconds"] > 0.1 and stats["fed"] < 0.5
    assert "epoch 0: fed " in capsys.readouterr().err


def test_a_job_has_one_loop_at_a_time(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with numbers.batch(20).open(epochs=1, **local) as job:
        first, second = iter(job), iter(job)
        received = [next(first)["id"].tolist(), next(second)["id"].tolist()]
        with pytest.raises(feedline.WrongUse, match="another loop over this job has started"):
            next(first)
        received += [batch["id"].tolist() for batch in second]
        assert sorted(number for batch in received for number in batch) == list(range(997))


def test_two_threads_never_receive_the_same_batch(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    errors: list[str] = []
    ids: list[int] = []

    def loop() -> None:
        try:
            for batch in job:
                ids.extend(batch["id"].tolist())
        except feedline.WrongUse as error:
            errors.append(str(error))

    with numbers.batch(20).open(epochs=1, **local) as job:
        threads = [threading.Thread(target=loop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(ids) == len(set(ids))
    assert all("another thread" in text or "another loop" in text for text in errors), errors


@pytest.mark.parametrize("epochs", [0, -1, 2**40])
def test_invalid_epochs_are_rejected(epochs: int, numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with pytest.raises(feedline.WrongUse, match=f"epochs is {epochs}; expected a number from 1 to"):
        numbers.batch(20).open(epochs=epochs, **local)


def test_stats_are_available_while_another_thread_waits(lines: Path, local: dict[str, Any]) -> None:
    with feedline.read(url=lines, format="text").wait(ms=20).batch(1).open(epochs=1, **local) as job:
        loop = job.batches()
        next(loop)
        seen = []
        thread = threading.Thread(target=lambda: seen.extend(job.stats()["batches"] for _ in range(500)))
        thread.start()
        for _ in range(20):
            next(loop)
        thread.join()
        loop.close()
    assert len(seen) == 500 and seen == sorted(seen)


def test_patience_applies_to_the_first_connection(
    numbers: feedline.Pipeline, local: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def service(settings: str) -> Any:
        attempts.append(settings)
        if len(attempts) < 3:
            raise feedline.CoordinatorLost("it starts")
        return original_service(settings)

    original_service = feedline._native.Service
    monkeypatch.setattr(feedline._native, "Service", service)
    monkeypatch.setattr("feedline._session._RETRY_SECONDS", 0.0)
    with pytest.raises(feedline.CoordinatorLost, match="it starts"):
        next(iter(numbers.batch(100).open(**local)))
    assert len(attempts) == 1, "without patience, the first failure is raised"
    monkeypatch.undo()
    with pytest.raises(feedline.CoordinatorLost, match="check the address, and that a coordinator is running there"):
        next(iter(numbers.batch(100).open(coordinator="http://127.0.0.1:1")))
    monkeypatch.setattr(feedline._native, "Service", service)
    monkeypatch.setattr("feedline._session._RETRY_SECONDS", 0.0)
    with numbers.batch(100).open(patience=60, epochs=1, **local) as job:
        assert sum(batch.size for batch in job) == 997
    assert len(attempts) == 3


def test_the_environment_selects_a_cluster(lines: Path, clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_COORDINATOR", clusters(1))
    with feedline.read(url=lines, format="text").batch(100).open(epochs=1) as job:
        assert sum(batch.size for batch in job) == 500


def test_unknown_and_invalid_options_are_rejected(numbers: feedline.Pipeline, local: dict[str, Any]) -> None:
    with pytest.raises(feedline.WrongUse, match=r"no option workres=; did you mean workers="):
        numbers.batch(1).open(workres=2)
    with pytest.raises(feedline.WrongUse, match="buffer is -1; expected a number greater than 0"):
        numbers.batch(1).open(buffer=-1)
    for option, value in {"epochs": "3", "world_size": 1.5, "rank": "0", "buffer": "256MiB", "batch_size": [4]}.items():
        with pytest.raises(feedline.WrongUse, match=f"^{option} is .*; expected an integer$"):
            numbers.batch(1).open(**{option: value})
    with pytest.raises(feedline.WrongUse, match="weight is 'much'; expected a number"):
        numbers.batch(1).open(weight="much")
    with pytest.raises(feedline.WrongUse, match="requires virtual_consumers="):
        numbers.batch(1).open(elastic=True)
    with numbers.batch(np.int64(100)).open(consumers=np.int32(1), epochs=np.uint8(1), weight=np.float32(1), **local) as job:
        assert job and len(list(job)) == 10
