"""Ray Data on image files, with OpenCV (crops.py), on a local Ray with one CPU per core.

- https://docs.ray.io/en/latest/data/working-with-images.html and .../data/api/doc/ray.data.read_binary_files.html: files
  are read in parallel tasks; `read_images` would decode whole photographs before the crop is known.
- https://docs.ray.io/en/latest/data/shuffling-data.html: `shuffle="files"` reads in a random order, which shuffles all
  rows if each file is a row.
- https://docs.ray.io/en/latest/data/performance-tips.html and .../data/iterating-over-data.html: a vectorised
  `map_batches`, fused with reading, and `iter_batches`, which prefetches a batch.

Ray starts before the measurement. A run of the same tasks on a few rows starts its worker processes.
"""

import logging
import os

os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import crops
import numpy
import ray
import shared


def crop(batch):
    return {"image": numpy.stack([crops.crop(jpeg) for jpeg in batch["bytes"]])}


def photographs(paths):
    # About one block per batch, so that both cores are busy until the end.
    files = ray.data.read_binary_files(paths, shuffle="files", override_num_blocks=max(1, len(paths) // shared.IMAGE_BATCH))
    return files.map_batches(crop, batch_size=None, zero_copy_batch=True)


def batches(dataset):
    for batch in dataset.iter_batches(batch_size=shared.IMAGE_BATCH, batch_format="numpy"):
        yield batch["image"]


def main():
    given = shared.arguments()
    ray.init(num_cpus=given.cores, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    paths = sorted(map(str, (given.data / "files/photographs").iterdir()))
    list(batches(photographs(paths[: 4 * shared.IMAGE_BATCH])))
    dataset = photographs(paths)
    shared.measure(given, f"Ray {ray.__version__}", lambda epoch: batches(dataset))


if __name__ == "__main__":
    main()
