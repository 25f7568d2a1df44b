"""Resuming takes less than a second at any position of an epoch. `make restoring` prints the figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import feedline
import pytest
from conftest import ranks_of

ROWS = 200_000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("".join(f"line {row}\n" for row in range(ROWS)))
    return path


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_job_resumes_within_a_second(
    is_filtered: bool, lines: Path, clusters: Any, local: dict[str, Any], run_name: Any
) -> None:
    pipeline = feedline.read(url=lines, format="text", seed=2).shuffle(window=4096)
    pipeline = (pipeline.filter(where="text LIKE '%5%'") if is_filtered else pipeline).batch(256)
    options = {"virtual_consumers": 2, "epochs": 1}
    served = {"coordinator": clusters(3), **options}
    jobs = ranks_of(pipeline, 2, run_name(), **served)
    loops = [job.batches() for job in jobs]
    states, sizes = [], []
    for steps in (2, 60, 60):
        for _ in range(steps):
            [next(loop) for loop in loops]
        begun = time.perf_counter()
        states.append(jobs[len(states) % 2].state_dict())
        sizes.append(time.perf_counter() - begun)
    [loop.close() for loop in loops]
    [job.close() for job in jobs]
    assert max(sizes) < 1
    for service in (served, {**local, **options}):
        with feedline.open(pipeline, **service) as job:
            next(job.batches())
            for state in states:
                # The machine may be busy for a moment.
                took = min(_restored(job, state) for _ in range(3))
                print(f"\nstep {state.get('step', state.get('batches'))}, {'served' if service is served else 'embedded'}: {took:.3f} s", end="")
                assert took < 1


def _restored(job: feedline.Job, state: dict[str, Any]) -> float:
    begun = time.perf_counter()
    job.load_state_dict(state)
    loop = job.batches()
    next(loop)
    seconds = time.perf_counter() - begun
    loop.close()
    return seconds
