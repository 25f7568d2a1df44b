#!/usr/bin/env python3
"""Builds the container image of Feedline as one archive, without a Docker daemon.

    build.py --binary target/dist/feedline --output target/image [--variant python]

writes OUTPUT/feedline-VERSION.tar and its software bill of materials, OUTPUT/feedline-VERSION.spdx.json. Two builds
from the same binary, packages and SOURCE_DATE_EPOCH have the same digest. The root needs `mmdebstrap`.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from archive import Entry, build_image, build_layer, regular_file
from crates import TARGETS, Crate, crates_in_binary, licence_texts, run_cargo_metadata
from packages import SUITE, VARIANTS, read_packages
from root import USER, configure, read_root, unpack
from sbom import build_sbom

REPOSITORY = Path(__file__).parents[2]
REGISTRY = "docker.io/library/feedline"
BINARY = "usr/local/bin/feedline"
DOCUMENTS = "usr/share/doc/feedline"
MAX_BYTES = 80_000_000  # of the compressed layers
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def main() -> None:
    args = parse_arguments()
    if not args.binary.is_file():
        sys.exit(f"{args.binary} does not exist: run `make dist`, or set BINARY to a feedline binary")
    if not args.architecture:
        sys.exit(f"cannot build an image for {platform.machine()}: pass --architecture {' or '.join(TARGETS)}")
    if not shutil.which("mmdebstrap"):
        sys.exit("mmdebstrap is not installed: run `apt-get install mmdebstrap`, or use deploy/Dockerfile with Docker")
    metadata = json.loads(args.metadata.read_text()) if args.metadata else None
    try:
        name, archive, sbom = build(args, metadata or run_cargo_metadata(REPOSITORY, args.architecture))
    except subprocess.CalledProcessError as error:
        sys.exit(f"`{error.cmd[0]}` failed with status {error.returncode}; its messages are above")
    except ValueError as error:
        sys.exit(f"cannot build the image: {error}")
    if len(archive) > MAX_BYTES:
        sys.exit(f"the image has {len(archive):,} bytes, more than {MAX_BYTES:,}: remove packages from packages.txt")
    path = write(args.output, f"feedline-{name.rpartition(':')[2]}", archive, sbom)
    print(f"{path}: {name}, {len(archive) / 1e6:.1f} MB")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help="the feedline binary")
    parser.add_argument("--output", type=Path, required=True, help="directory for the archive")
    parser.add_argument("--variant", choices=VARIANTS, default="default", help="`python` adds Python for functions")
    parser.add_argument(
        "--architecture", choices=TARGETS, default=MACHINES.get(platform.machine()), help="architecture of the binary"
    )
    parser.add_argument("--mirror", action="append", default=[], help="Debian mirror [default: deb.debian.org]")
    parser.add_argument("--metadata", type=Path, help="output of `cargo metadata` [default: run cargo]")
    return parser.parse_args()


def build(args: argparse.Namespace, metadata: dict) -> tuple[str, bytes, str]:
    """Returns the name of the image, its archive and its bill of materials."""
    version = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    name = f"{REGISTRY}:{version}{VARIANTS[args.variant]}"
    created = creation_time(os.environ.get("SOURCE_DATE_EPOCH") or "0")
    packages = read_packages(args.variant)
    entries, debian = read_root(unpack(packages, SUITE, args.architecture, args.mirror))
    configure(entries, debian)
    crates = crates_in_binary(metadata)
    lock = (REPOSITORY / "Cargo.lock").read_text()
    sbom = build_sbom(name, version, created, SUITE, debian, crates, lock)
    layers = [
        (f"packages of Debian {SUITE}: {' '.join(packages)}", build_layer(entries)),
        (f"feedline {version}", build_layer(feedline_files(args.binary, crates, sbom))),
    ]
    archive = build_image(name, layers, image_settings(version), args.architecture, created)
    return name, archive, sbom


def feedline_files(binary: Path, crates: list[Crate], sbom: str) -> dict[str, Entry]:
    """Returns the layer of Feedline: the binary, the licences and the bill of materials."""
    return {
        BINARY: regular_file(without_symbols(binary), 0o755),
        f"{DOCUMENTS}/copyright": regular_file((REPOSITORY / "LICENSE").read_bytes()),
        f"{DOCUMENTS}/third-party-licenses.txt": regular_file(licence_texts(crates)),
        f"{DOCUMENTS}/sbom.spdx.json": regular_file(sbom),
    }


def without_symbols(binary: Path) -> bytes:
    """Returns the binary without symbols and debug information, which make up most of a debug build."""
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "feedline"
        result = subprocess.run(["strip", "-o", stripped, binary], capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{binary} is not a program for Linux: {result.stderr.strip()}")
        return stripped.read_bytes()


def image_settings(version: str) -> dict:
    """Returns the section `config` of the image; `deploy/Dockerfile` has the same settings."""
    return {
        "User": f"{USER}:{USER}",
        "Entrypoint": [f"/{BINARY}"],
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        "WorkingDir": "/",
        "ExposedPorts": {"7070/tcp": {}, "7071/tcp": {}},
        "Labels": {
            "org.opencontainers.image.title": "Feedline",
            "org.opencontainers.image.description": "A distributed input pipeline service",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": version,
        },
    }


def creation_time(epoch: str) -> str:
    return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(output: Path, name: str, archive: bytes, sbom: str) -> Path:
    """Replaces the files, so that an interrupted build leaves no partial archive under the final name."""
    output.mkdir(parents=True, exist_ok=True)
    for path, data in [(output / f"{name}.spdx.json", sbom.encode()), (output / f"{name}.tar", archive)]:
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(data)
        partial.replace(path)
    return path


if __name__ == "__main__":
    main()
