"""WebDataset: tar shards in a WebLoader, with OpenCV (crops.py).

- https://github.com/webdataset/webdataset#readme: shards are shuffled, rows are shuffled in a buffer, and worker processes
  build the batches, which the WebLoader passes on unchanged.
- https://webdataset.github.io/webdataset/: shards are divided among workers, so the last batch of a worker may be smaller.
"""

import crops
import shared
import torch_loader
import webdataset


def main():
    given = shared.arguments()
    shards = sorted(map(str, (given.data / "webdataset").glob("*.tar")))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), seed=shared.SEED)
        .shuffle(shared.SHUFFLE_BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(crops.crop, int)
        .batched(shared.IMAGE_BATCH, partial=True)
    )
    batches = webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=given.cores,
        persistent_workers=True,
        prefetch_factor=4,
        worker_init_fn=torch_loader.seed,
    )
    shared.measure(given, f"WebDataset {webdataset.__version__}", lambda epoch: (images for images, _ in batches))


if __name__ == "__main__":
    main()
