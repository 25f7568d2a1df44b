"""Packs programs as container images."""

import platform
import sys
from pathlib import Path

from harness.programs import REPOSITORY

sys.path.append(str(REPOSITORY / "deploy/image"))

from archive import Entry, build_image, build_layer, regular_file  # noqa: E402

PAUSE = "feedline.test/pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = "1970-01-01T00:00:00Z"


def write_image(path: Path, name: str, files: dict[str, Path | Entry], settings: dict) -> Path:
    """Writes an archive with an image of these files. A file of the host keeps its mode.

    `name` must be fully qualified, because containerd imports it literally. `settings` is the section `config` of the
    image.
    """
    entries = {target: entry if isinstance(entry, Entry) else _read(entry) for target, entry in files.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    layers, architecture = [("files", build_layer(entries))], ARCHITECTURES[platform.machine()]
    path.write_bytes(build_image(name, layers, settings, architecture, CREATED))
    return path


def write_pause(path: Path, program: Path) -> Path:
    return write_image(path, PAUSE, {"pause": program}, {"Entrypoint": ["/pause"]})


def _read(path: Path) -> Entry:
    return regular_file(path.read_bytes(), path.stat().st_mode & 0o777)
