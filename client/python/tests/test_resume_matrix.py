"""200 combinations of ranks, workers, pipelines and positions: the resumed job returns the remaining batches."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import feedline
import pytest
from conftest import ranks_of

KINDS = ["filter", "pack", "mix", "shuffle"]
SLOTS = 12


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, feedline.Pipeline]:
    folder = tmp_path_factory.mktemp("matrix")
    for name, rows in [("a", 700), ("b", 300)]:
        lines = ({"n": row, "tokens": [row] * (1 + row % 9)} for row in range(rows))
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    one = feedline.read(url=folder / "a.jsonl", format="jsonl", seed=4, name="matrix").shuffle(window=64)
    both = feedline.mix([feedline.read(url=folder / f"{name}.jsonl", format="jsonl") for name in "ab"], [2, 1], seed=4, name="matrix")
    return {
        "filter": one.filter(where="n <> 5 AND n < 600").batch(8),
        "pack": one.select(["tokens"]).pack(columns=["tokens"], length=16, size=2),
        "mix": both.shuffle(window=64).batch(8),
        "shuffle": one.batch(8),
    }


def digest(batch: Any) -> str:
    text = repr([[name, [list(row) if hasattr(row, "__len__") else row for row in column.tolist()]] for name, column in sorted(batch.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def take(jobs: list[feedline.Job], batches: int | None, found: dict[int, list[str]]) -> bool:
    """Reads batches of all ranks in turn, one for each slot of a rank. Returns whether a step was read."""
    loops = [iter(job.batches()) for job in jobs]
    open_loops = list(zip(loops, jobs, strict=True))
    steps = 0
    while open_loops and (batches is None or steps < batches):
        steps += 1
        for loop, job in list(open_loops):
            for _ in range(len(job.slots)):
                batch = next(loop, None)
                if batch is None:
                    open_loops = [pair for pair in open_loops if pair[0] is not loop]
                    break
                found.setdefault(batch.slot, []).append(digest(batch))
    [loop.close() for loop in loops]
    return steps > 0


@pytest.fixture(scope="module")
def expected_batches() -> dict[str, dict[int, list[str]]]:
    return {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_resumed_job_returns_the_remaining_batches(
    kind: str, workers: int, ranks: int, pipelines: Any, clusters: Any, run_name: Any, expected_batches: Any
) -> None:
    options = {"virtual_consumers": SLOTS, "epochs": 2}
    if kind not in expected_batches:
        expected_batches[kind] = {}
        jobs = ranks_of(pipelines[kind], 1, run_name(), coordinator=clusters(1), **options)
        take(jobs, None, expected_batches[kind])
    expected = expected_batches[kind]
    steps = max(len(batches) for batches in expected.values())
    draw = random.Random(f"{kind} {workers} {ranks}")
    # 200 cases: 24 combinations stop at 6 positions, and 8 at 7 positions.
    for case in range(7 if (ranks + workers) % 4 == 0 else 6):
        stop, after = draw.randrange(1, steps), draw.choice([1, 2, 3, 4])
        found: dict[int, list[str]] = {}
        jobs = ranks_of(pipelines[kind], ranks, run_name(), coordinator=clusters(workers), **options)
        take(jobs, stop, found)
        states = [json.loads(json.dumps(job.state_dict())) for job in jobs]
        [job.close() for job in jobs]
        # The state of a finished rank lacks ranks that continue.
        state = draw.choice([state for state in states if "missing" not in state])
        jobs = ranks_of(pipelines[kind], after, run_name(), coordinator=clusters(draw.choice([1, 3])), state=state, **options)
        take(jobs, None, found)
        [job.close() for job in jobs]
        assert found == expected, f"case {case}: stopped after {stop} of {steps} steps, {after} ranks after"
