"""Who takes part: which job, which environment (requirements-NAME.txt), which runner and what it reads."""

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

    @property
    def is_ours(self):
        return not self.runner


def image(key, title, reads, environment, runner, variant=""):
    return Contender(key, title, "images", reads, environment, runner, variant)


def text(key, title, reads, environment, runner, variant=""):
    return Contender(key, title, "text", reads, environment, runner, variant)


CONTENDERS = [
    Contender("feedline", "Feedline, embedded", "images", "TFRecord"),
    Contender("feedline-processes", "Feedline, separate processes", "images", "TFRecord"),
    Contender("kernel", "raw kernel, one thread × cores", "images", "files in memory"),
    image("tfdata", "tf.data", "TFRecord", "tensorflow", "tfdata.py"),
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
    text("tfdata-text", "tf.data, tokenizers", "TFRecord", "tensorflow", "tfdata_text.py"),
    text("datasets", "Hugging Face datasets, set_transform", "Arrow", "datasets", "datasets_text.py", "transform"),
    text("datasets-iterable", "Hugging Face datasets, iterable", "Arrow", "datasets", "datasets_text.py", "iterable"),
    text("datasets-map", "Hugging Face datasets, map, 2 processes", "Arrow", "datasets", "datasets_text.py", "map"),
]


def chosen(only):
    """The contenders of a comma-separated list of keys; a key also stands for those that it begins, up to a dash."""
    wanted = [key.strip() for key in only.split(",") if key.strip()]
    for key in wanted:
        if not any(is_meant(contender.key, key) for contender in CONTENDERS):
            keys = " ".join(contender.key for contender in CONTENDERS)
            raise SystemExit(f"there is no contender {key!r}; there are: {keys}")
    return [each for each in CONTENDERS if not wanted or any(is_meant(each.key, key) for key in wanted)]


def is_meant(key, wanted):
    return key == wanted or key.startswith(f"{wanted}-")
