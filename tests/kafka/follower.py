"""A rank of an unbounded job, as a process: writes the offsets of each batch and the states of the job to files. SIGTERM ends it after a
batch.

The argument is a JSON object with the fields of `Settings`.
"""

import json
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Settings:
    coordinator: str
    url: str
    topics: str
    out: str
    batch: int = 32
    order: str = "deterministic"
    start: str = "earliest"
    window: int = 0
    # The milliseconds that one core of a worker waits for a row.
    wait_ms: int = 0
    rank: int = 0
    ranks: int = 1
    virtual_consumers: int | None = None
    elastic: bool = False
    name: str = "follow"
    source: dict = field(default_factory=dict)
    # A state from which the job resumes.
    state: str | None = None
    # The number of batches between two states, which are written beside `out`.
    save_every: int = 0
    # The process ends after this number of batches.
    batches: int | None = None


def main() -> None:
    import feedline

    settings = Settings(**json.loads(sys.argv[1]))
    source = {"payload": "json", **settings.source}
    pipeline = feedline.read(
        url=settings.url, format="kafka", topics=settings.topics, start=settings.start, until="none", order=settings.order, seed=7, **source,
    )
    if settings.wait_ms:
        pipeline = pipeline.wait(settings.wait_ms, parallelism=1)
    job = pipeline.shuffle(settings.window).batch(settings.batch).open(
        coordinator=settings.coordinator, name=settings.name, rank=settings.rank, world_size=settings.ranks,
        virtual_consumers=settings.virtual_consumers, elastic=settings.elastic,
    )
    if settings.state:
        job.load_state_dict(json.loads(Path(settings.state).read_text()))
    is_ending = []
    signal.signal(signal.SIGTERM, lambda *_: is_ending.append(True))
    out = Path(settings.out)
    with out.open("a") as lines:
        for number, batch in enumerate(job.batches(), 1):
            now = time.time() * 1000
            rows = list(zip(batch["partition"].tolist(), batch["offset"].tolist(), strict=True))
            line = {"epoch": batch.epoch, "age_ms": now - max(batch["timestamp"].tolist()), "rows": rows}
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            if settings.save_every and number % settings.save_every == 0:
                saved = out.with_name(f"{out.name}.{number}.state")
                saved.write_text(json.dumps(job.state_dict()))
            if is_ending or number == settings.batches:
                break


if __name__ == "__main__":
    main()
