"""The list of contenders: job, environment (requirements-NAME.txt), runner, variant, and input format.

To add a contender, add a line here and a runner that calls `shared.measure`, or a few lines in ours.py for Feedline itself.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Contender:
    key: str
    title: str
    job: str
    reads: str
    environment: str = ""
    runner: str = ""
    variant: str = ""
    epoch: int = 1

    @property
    def is_ours(self):
        """Returns whether the contender is Feedline or its kernel."""
        return not self.runner

    @property
    def kind(self):
        """Returns the kind of the contender in the chart: the limit, Feedline, or another tool."""
        if self.key == "kernel":
            return "limit"
        return "ours" if self.is_ours else "peer"


def image(key, title, reads, environment, runner, variant="", epoch=1):
    return Contender(key, title, "images", reads, environment, runner, variant, epoch)


def text(key, title, reads, environment, runner, variant="", epoch=1):
    return Contender(key, title, "text", reads, environment, runner, variant, epoch)


ALL = [
    Contender("feedline", "Feedline, embedded", "images", "TFRecord"),
    Contender("feedline-processes", "Feedline, separate processes", "images", "TFRecord"),
    Contender("feedline-indexed", "Feedline, later epochs, indexed JPEGs in memory", "images", "TFRecord", variant="indexed", epoch=2),
    Contender("feedline-disk", "Feedline, later epochs, indexed JPEGs on disk", "images", "TFRecord", variant="disk", epoch=2),
    Contender("feedline-decoded", "Feedline, later epochs, decoded images in memory", "images", "TFRecord", variant="decoded", epoch=2),
    Contender("kernel", "raw kernel, one thread × cores", "images", "files in memory"),
    image("tfdata", "tf.data", "TFRecord", "tensorflow", "tfdata.py"),
    image("tfdata-decoded", "tf.data, epoch 2, decoded images in memory", "TFRecord", "tensorflow", "tfdata.py", "decoded", 2),
    image("tfdata-service", "tf.data service, no compression", "TFRecord", "tensorflow", "tfdata_service.py", "none"),
    image("tfdata-service-auto", "tf.data service, compression AUTO", "TFRecord", "tensorflow", "tfdata_service.py", "auto"),
    image("torch-pillow", "PyTorch DataLoader, Pillow", "files", "torch", "torch_loader.py", "pillow"),
    image("torch-tensors", "PyTorch DataLoader, torchvision tensors", "files", "torch", "torch_loader.py", "tensors"),
    image("torch-opencv", "PyTorch DataLoader, OpenCV", "files", "torch", "torch_loader.py", "opencv"),
    image("grain", "Grain, threads, OpenCV", "ArrayRecord", "grain", "grain_loader.py", "threads"),
    image("grain-processes", "Grain, processes, OpenCV", "ArrayRecord", "grain", "grain_loader.py", "processes"),
    image("mosaicml", "MosaicML Streaming, OpenCV", "MDS", "torch", "mosaicml.py"),
    image("webdataset", "WebDataset, OpenCV", "tar", "torch", "webdataset_tar.py"),
    image("ray", "Ray Data, OpenCV", "files", "ray", "ray_data.py"),
    Contender("feedline-text", "Feedline, embedded", "text", "JSON lines"),
    Contender("feedline-text-processes", "Feedline, separate processes", "text", "JSON lines"),
    Contender("feedline-text-tokens", "Feedline, later epochs, tokens in memory", "text", "JSON lines", variant="tokens", epoch=2),
    text("tfdata-text", "tf.data, tokenizers", "TFRecord", "tensorflow", "tfdata_text.py"),
    text("tfdata-tokens", "tf.data, epoch 2, tokens in memory", "TFRecord", "tensorflow", "tfdata_text.py", "tokens", 2),
    text("datasets", "Hugging Face datasets, set_transform", "Arrow", "datasets", "datasets_text.py", "transform"),
    text("datasets-iterable", "Hugging Face datasets, iterable", "Arrow", "datasets", "datasets_text.py", "iterable"),
    text("datasets-loader", "Hugging Face datasets, DataLoader", "Arrow", "datasets", "datasets_text.py", "loader"),
    text("datasets-map", "Hugging Face datasets, map", "Arrow", "datasets", "datasets_text.py", "map"),
    text("datasets-mapped", "Hugging Face datasets, map, epoch 2", "Arrow", "datasets", "datasets_text.py", "map", 2),
]

CONTENDERS = {contender.key: contender for contender in ALL}


def chosen(only):
    """Returns the contenders that a comma-separated list of keys and jobs selects, or all contenders if the list is empty."""
    wanted = {name.strip() for name in only.split(",")} - {""}
    unknown = wanted - CONTENDERS.keys() - {contender.job for contender in ALL}
    if unknown:
        raise SystemExit(f"unknown contender {', '.join(sorted(unknown))}; choose from: images text {' '.join(CONTENDERS)}")
    return [each for each in ALL if not wanted or {each.key, each.job} & wanted]
