"""Layers and archives with the same bytes for the same content.

An archive is both an OCI image layout and a Docker archive: `index.json` and `manifest.json` refer to the same blobs.
"""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

MEDIA_TYPE = "application/vnd.oci.image"


@dataclass(frozen=True)
class Entry:
    """A file, directory or symbolic link of a layer. The owner is 0:0 and the time is 0."""

    mode: int
    data: bytes | None = None  # the content of a file
    target: str | None = None  # the target of a symbolic link

    @property
    def is_directory(self) -> bool:
        return self.data is None and self.target is None


def directory(mode: int = 0o755) -> Entry:
    return Entry(mode)


def regular_file(data: bytes | str, mode: int = 0o644) -> Entry:
    return Entry(mode, data=data.encode() if isinstance(data, str) else data)


def link(target: str) -> Entry:
    return Entry(0o777, target=target)


@dataclass
class Blob:
    """Content that is addressed by its SHA-256 digest."""

    data: bytes
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(self.data).hexdigest()

    @property
    def path(self) -> str:
        return f"blobs/sha256/{self.digest}"

    def descriptor(self, kind: str) -> dict:
        return {
            "mediaType": f"{MEDIA_TYPE}.{kind}",
            "digest": f"sha256:{self.digest}",
            "size": len(self.data),
        }


@dataclass
class Layer(Blob):
    """The compressed files of a layer. The digest of the uncompressed files identifies them in the config."""

    diff_id: str = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.diff_id = f"sha256:{hashlib.sha256(gzip.decompress(self.data)).hexdigest()}"


def build_layer(entries: dict[str, Entry]) -> Layer:
    """Packs and compresses the entries, sorted by path. Adds missing parent directories."""
    return Layer(gzip.compress(_pack(entries), compresslevel=6, mtime=0))


def _pack(entries: dict[str, Entry]) -> bytes:
    for path in list(entries):
        for parent in list(Path(path).parents)[:-1]:
            entries.setdefault(str(parent), directory())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(entries, key=lambda path: path.split("/")):
            tar.addfile(*_member(path, entries[path]))
    return buffer.getvalue()


def build_image(name: str, layers: list[tuple[str, Layer]], settings: dict, architecture: str, created: str) -> bytes:
    """Returns an archive with one image.

    `name` must be fully qualified, such as docker.io/library/feedline:1.0, because containerd imports it literally and
    kubelet looks up the qualified name. `layers` contains a description and the content of each layer. `settings` is
    the section `config` of the image.
    """
    platform = {"architecture": architecture, "os": "linux"}
    config = _json_blob({
        **platform,
        "created": created,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for _, layer in layers]},
        "history": [{"created": created, "created_by": description} for description, _ in layers],
    })
    manifest = _json_blob({
        "schemaVersion": 2,
        "mediaType": f"{MEDIA_TYPE}.manifest.v1+json",
        "config": config.descriptor("config.v1+json"),
        "layers": [layer.descriptor("layer.v1.tar+gzip") for _, layer in layers],
    })
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA_TYPE}.index.v1+json",
        "manifests": [
            {**manifest.descriptor("manifest.v1+json"), "platform": platform, "annotations": annotations}
        ],
    }
    docker = [{"Config": config.path, "RepoTags": [name], "Layers": [layer.path for _, layer in layers]}]
    entries = {
        "oci-layout": regular_file(json.dumps({"imageLayoutVersion": "1.0.0"})),
        "index.json": regular_file(json.dumps(index, sort_keys=True)),
        "manifest.json": regular_file(json.dumps(docker, sort_keys=True)),
    }
    entries |= {blob.path: regular_file(blob.data) for blob in [config, manifest, *(blob for _, blob in layers)]}
    return _pack(entries)


def _json_blob(value: object) -> Blob:
    return Blob(json.dumps(value, sort_keys=True).encode())


def _member(path: str, entry: Entry) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    member = tarfile.TarInfo(path)
    member.mode = entry.mode
    if entry.target is not None:
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
    elif entry.data is not None:
        member.size = len(entry.data)
        return member, io.BytesIO(entry.data)
    else:
        member.type = tarfile.DIRTYPE
    return member, None
