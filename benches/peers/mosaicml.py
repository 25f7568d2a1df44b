"""MosaicML Streaming on its MDS format, in a PyTorch DataLoader, with OpenCV (crops.py).

- https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/main_concepts.html: a StreamingDataset with the
  batch size and shuffling enabled, in a DataLoader of the same batch size.
- https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html: the JPEGs as `bytes`, so
  that they are not encoded again and the user chooses the decoder.
"""

import crops
import shared
import streaming
import torch_loader


class Photographs(streaming.StreamingDataset):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return crops.crop(row["image"]), row["label"]


def prepare(given):
    with streaming.MDSWriter(out=str(given.prepare), columns={"image": "bytes", "label": "int"}) as writer:
        for file in sorted((given.data / "files/photographs").iterdir()):
            writer.write({"image": file.read_bytes(), "label": 0})


def main():
    given = shared.arguments()
    if given.prepare:
        return prepare(given)
    streaming.base.util.clean_stale_shared_memory()
    dataset = Photographs(
        local=str(given.data / "mds"), shuffle=True, shuffle_seed=shared.SEED, batch_size=shared.IMAGE_BATCH
    )
    batches = torch_loader.loader(dataset, given, batch_size=shared.IMAGE_BATCH)
    shared.measure(given, f"MosaicML Streaming {streaming.__version__}", lambda epoch: (images for images, _ in batches))


if __name__ == "__main__":
    main()
