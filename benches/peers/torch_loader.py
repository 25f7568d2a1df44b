"""PyTorch DataLoader on plain image files, the usual format, with the common decoders.

- https://docs.pytorch.org/docs/stable/data.html and https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html:
  one worker process per core, kept between epochs, each prefetching several batches.
- https://docs.pytorch.org/vision/stable/transforms.html, "Performance considerations": version 2 of the transforms, uint8
  throughout, bilinear.

Variants: `pillow` (the loader of ImageFolder, transforms on PIL images, uint8 HWC), `tensors` (torchvision.io's JPEG
decoder, transforms on uint8 tensors, CHW), `opencv` (crops.py).
"""

import pathlib
import random

import numpy
import shared
import torch
import torchvision
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

VERSION = f"PyTorch {torch.__version__}"


def read_tensor(path):
    return torchvision.io.decode_image(torchvision.io.read_file(path), torchvision.io.ImageReadMode.RGB)


def read_bytes(path):
    return pathlib.Path(path).read_bytes()


def images(given):
    """Returns the dataset of a variant."""
    folder = str(given.data / "files")
    crop = [v2.RandomResizedCrop(shared.SIZE, shared.SCALE, shared.RATIO, antialias=True), v2.RandomHorizontalFlip()]
    if given.variant == "opencv":
        import crops

        return ImageFolder(folder, loader=read_bytes, transform=crops.crop)
    if given.variant == "tensors":
        return ImageFolder(folder, loader=read_tensor, transform=v2.Compose(crop))
    return ImageFolder(folder, transform=v2.Compose([*crop, numpy.asarray]))


def loader(dataset, given, **more):
    """Returns the DataLoader, which other PyTorch-based runners use too."""
    return torch.utils.data.DataLoader(
        dataset, num_workers=given.cores, persistent_workers=True, prefetch_factor=4, worker_init_fn=seed, **more
    )


def seed(_worker):
    random.seed(torch.initial_seed())


def main():
    given = shared.arguments()
    batches = loader(images(given), given, batch_size=shared.IMAGE_BATCH, shuffle=True)
    shared.measure(given, VERSION, lambda epoch: (images for images, _ in batches))


if __name__ == "__main__":
    main()
