"""Grain on ArrayRecord, its random-access format, with OpenCV (crops.py), because Grain has no decoder.

- https://google-grain.readthedocs.io/en/latest/tutorials/data_loader_tutorial.html and .../data_sources.html: one
  record per ArrayRecord group, a global shuffle, batches, then a stage of parallel reading.

Variants: `processes` (`mp_prefetch` with one worker per core, recommended for transformations that need CPU time) and
`threads` (only `ReadOptions`, because OpenCV releases the interpreter lock).
"""

import random

import crops
import grain
import shared
from array_record.python.array_record_module import ArrayRecordWriter


class Crop(grain.transforms.RandomMap):
    def random_map(self, record, generator):
        return crops.crop(record, random.Random(int(generator.integers(2**63))))


def prepare(given):
    """Writes the photographs as ArrayRecord."""
    files = sorted((given.data / "files/photographs").iterdir())
    given.prepare.mkdir()
    for shard in range(shared.SHARDS):
        writer = ArrayRecordWriter(str(given.prepare / f"{shard:05}.arrayrecord"), "group_size:1")
        for file in files[shard :: shared.SHARDS]:
            writer.write(file.read_bytes())
        writer.close()


def photographs(given):
    shards = sorted(map(str, (given.data / "arrayrecord").iterdir()))
    source = grain.sources.ArrayRecordDataSource(shards)
    dataset = grain.MapDataset.source(source).seed(shared.SEED).shuffle().random_map(Crop())
    dataset = dataset.batch(shared.IMAGE_BATCH)
    if given.variant == "threads":
        # Each thread computes whole batches, so use one per core; a few batches are buffered.
        return dataset.to_iter_dataset(grain.ReadOptions(num_threads=given.cores, prefetch_buffer_size=8))
    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=given.cores, per_worker_buffer_size=4)
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)).mp_prefetch(workers)


def main():
    given = shared.arguments()
    if given.prepare:
        return prepare(given)
    dataset = photographs(given)
    shared.measure(given, f"Grain {grain.__version__}", lambda epoch: dataset)


if __name__ == "__main__":
    main()
