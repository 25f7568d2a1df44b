"""The images of the tests: the one of `make image` under two tags, and a training image with the Python package.

The training image also contains the binary, for `feedline run` and for the commands of an operator.
"""

import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

from harness.images import ARCHITECTURES, CREATED
from harness.programs import REPOSITORY

from archive import Layer, build_image, build_layer, regular_file  # deploy/image, which harness.images makes importable
from packages import SUITE, read_packages
from root import USER, configure, read_root, unpack

VERSION = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]
NEXT_VERSION = f"{VERSION}-next"
TRAINER = "feedline.test/trainer:1"
TARGET = REPOSITORY / "target"
# `make image` writes it. FEEDLINE_IMAGE is another archive.
ARCHIVE = Path(os.environ.get("FEEDLINE_IMAGE") or TARGET / f"image/feedline-{VERSION}.tar")
PACKAGES = "usr/lib/python3/dist-packages"
HERE = Path(__file__).parent


def missing() -> str | None:
    """Returns one sentence about what the images need, or None."""
    if not ARCHIVE.exists():
        debug = "`make image BINARY=target/debug/feedline` for a debug build"
        return f"{ARCHIVE} does not exist: run `make image`, or {debug}"
    if not library():
        return "target/debug/libfeedline_native.so does not exist: build it with `cargo build --workspace`"
    if not shutil.which("mmdebstrap"):
        return "mmdebstrap is not installed: run `apt-get install mmdebstrap`"
    return None


def library() -> Path | None:
    """Returns the newest build of the Python package's library, or that of FEEDLINE_NATIVE."""
    if path := os.environ.get("FEEDLINE_NATIVE"):
        return Path(path)
    builds = [TARGET / kind / "libfeedline_native.so" for kind in ["debug", "release", "dist"]]
    return max((build for build in builds if build.exists()), key=lambda build: build.stat().st_mtime, default=None)


def archives() -> list[Path]:
    """Returns the archives, after building what has changed."""
    folder = TARGET / "cluster-images"
    folder.mkdir(parents=True, exist_ok=True)
    upgraded, trainer = folder / "next.tar", folder / "trainer.tar"
    sources = [ARCHIVE, library(), HERE / "trainer.py", HERE / "observer.py", HERE / "images.py"]
    sources += (REPOSITORY / "client/python/feedline").glob("*.py")
    newest = max(source.stat().st_mtime for source in sources)
    if not trainer.exists() or trainer.stat().st_mtime < newest:
        write_renamed(upgraded, f"docker.io/library/feedline:{NEXT_VERSION}")
        write_trainer(trainer)
    return [ARCHIVE, upgraded, trainer]


def write_renamed(path: Path, name: str) -> None:
    """Writes the image of `make image` with another name and a label, so that its digest differs."""
    with tarfile.open(ARCHIVE) as tar:
        read = lambda member: tar.extractfile(member).read()  # noqa: E731
        [image] = json.loads(read("manifest.json"))
        config = json.loads(read(image["Config"]))
        settings = config["config"]
        settings["Labels"] = settings.get("Labels", {}) | {"org.opencontainers.image.version": name.rpartition(":")[2]}
        layers = [("layer", Layer(read(layer))) for layer in image["Layers"]]
    _replace(path, build_image(name, layers, settings, config["architecture"], CREATED))


def write_trainer(path: Path) -> None:
    """Writes the training image: Debian's Python, the package `feedline`, and the programs of this directory."""
    architecture = ARCHITECTURES[platform.machine()]
    entries, debian = read_root(unpack(read_packages("python"), SUITE, architecture, []))
    configure(entries, debian)
    files = {
        f"{PACKAGES}/feedline/{source.name}": regular_file(source.read_bytes())
        for source in (REPOSITORY / "client/python/feedline").glob("*.py")
    }
    files[f"{PACKAGES}/feedline/_native.abi3.so"] = regular_file(_stripped(library()))
    files["usr/local/bin/feedline"] = regular_file(binary(), 0o755)
    files |= {name: regular_file((HERE / name).read_bytes()) for name in ["trainer.py", "observer.py"]}
    layers = [("packages of Debian", build_layer(entries)), ("the training program", build_layer(files))]
    settings = {
        "User": f"{USER}:{USER}",
        "Entrypoint": ["/usr/bin/python3", "-B"],
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
    }
    _replace(path, build_image(TRAINER, layers, settings, architecture, CREATED))


def binary() -> bytes:
    """Returns the binary in the image of `make image`."""
    with tarfile.open(ARCHIVE) as tar:
        [image] = json.loads(tar.extractfile("manifest.json").read())
        with tarfile.open(fileobj=tar.extractfile(image["Layers"][-1])) as layer:
            return layer.extractfile("usr/local/bin/feedline").read()


def _replace(path: Path, data: bytes) -> None:
    """Writes a file at once, because other tests may read it at the same time."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)


def _stripped(path: Path) -> bytes:
    """Returns a library without debug information, which would only make the image larger."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "-o", file.name, str(path)], check=True)
        return Path(file.name).read_bytes()
