"""One loop that trains torchvision's ResNet-50, for `resnet.py`. Prints its results as JSON.

Arguments: the source of batches, the directory of photographs (with a directory of links per class), and options as JSON.
"""

import json
import os
import pathlib
import sys
import time

import numpy
import torch
import torchvision
from torch.nn import functional
from torchvision.transforms import v2

CLASSES = 1000
# Mean and standard deviation of ImageNet for values from 0 to 255.
MEAN, SPREAD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# Number of different batches on the device for the loop without data loading.
RESIDENT = 4


def resident(_folder, options):
    """Repeats a few batches on the device, so that it trains at full speed."""
    size, rows, device = options["size"], options["batch"], options["device"]
    shape = (rows, size, size, 3)
    batches = [
        (torch.randint(256, shape, dtype=torch.uint8, device=device), torch.randint(CLASSES, (rows,), device=device))
        for _ in range(RESIDENT)
    ]
    while True:
        yield from batches


def feedline(folder, options):
    import feedline

    classes = {name: number for number, name in enumerate(sorted(os.listdir(folder)))}
    pipeline = (
        feedline.read(url=f"{folder}/*/*.JPEG", format="files", features={"image": "bytes", "path": "path"}, seed=7)
        .shuffle(window=4096)
        .random_resized_crop(column="image", size=[options["size"]] * 2)
        .random_horizontal_flip(column="image")
        .batch(options["batch"], remainder="drop")
    )
    # Without caches, each photograph is decoded for each step, as in PyTorch's loader.
    job = pipeline.open(auto_cache="off", cores=options["cores"], index_dir=options["index"], device=options["device"])
    for batch in job.batches():
        labels = torch.tensor([classes[pathlib.PurePath(path).parent.name] for path in batch["path"]])
        yield batch["image"], labels.to(options["device"], non_blocking=True)


def dataloader(folder, options):
    """Loads photographs with ImageFolder and version 2 of the transforms. Crops and flips are applied to PIL images."""
    crop = [v2.RandomResizedCrop(options["size"], antialias=True), v2.RandomHorizontalFlip(), numpy.asarray]
    loader = torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(folder, transform=v2.Compose(crop)),
        batch_size=options["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=options["cores"],
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=options["device"] != "cpu",
    )
    while True:
        for image, label in loader:
            yield image.to(options["device"], non_blocking=True), label.to(options["device"], non_blocking=True)


def train(batches, options):
    """Returns the images per second after the first steps, and the share of the time that the loop spent waiting for batches."""
    device = torch.device(options["device"])
    is_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    mean, spread = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, SPREAD))

    def step(image, label):
        with torch.autocast(device.type, torch.bfloat16, enabled=is_gpu):
            loss = functional.cross_entropy(model((image.permute(0, 3, 1, 2) - mean) / spread), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def finish():
        if is_gpu:
            torch.cuda.synchronize()

    for _ in range(options["warm"]):
        step(*next(batches))
    finish()
    began, waited = time.perf_counter(), 0.0
    for _ in range(options["steps"]):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(*batch)
    finish()
    seconds = time.perf_counter() - began
    return {"rate": options["steps"] * options["batch"] / seconds, "waited": waited / seconds}


SOURCES = {"resident": resident, "feedline": feedline, "dataloader": dataloader}


def main():
    source, folder, options = sys.argv[1:]
    options = json.loads(options)
    print(json.dumps(train(SOURCES[source](folder, options), options)), flush=True)
    # Exit without waiting for a loader that was stopped in the middle of an epoch.
    os._exit(0)


if __name__ == "__main__":
    main()
