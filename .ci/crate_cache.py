#!/usr/bin/env python3
"""Keeps the compiled third-party crates of a build in the user's cache, so that a fresh clone does not compile them again.

    crate_cache.py restore   copies them into target/debug, if the cache has them and target/debug has no build
    crate_cache.py save      copies them from target/debug into the cache, if it does not have them

The key of a copy consists of the compiler, the third-party packages in Cargo.lock, their features and the profiles. Cargo
checks each restored crate as usual: a copy that does not fit costs time, and is never used. The crates of the workspace are
not kept.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEBUG = ROOT / "target/debug"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedline/crates"
# The folders of Cargo with the state of each crate, the results of build scripts, and the libraries.
FOLDERS = [".fingerprint", "build", "deps"]
COPIES = 3


def main() -> None:
    match sys.argv[1:]:
        case ["restore"]:
            restore()
        case ["save"]:
            save()
        case _:
            sys.exit(__doc__)


def restore() -> None:
    copy = CACHE / key()
    if DEBUG.exists() or not copy.exists():
        return
    begin = time.monotonic()
    partial = DEBUG.with_name(f".debug-{os.getpid()}")
    partial.parent.mkdir(exist_ok=True)
    try:
        shutil.copytree(copy, partial, symlinks=True)
    except OSError as error:  # Another run has removed the copy, or the disk is full.
        shutil.rmtree(partial, ignore_errors=True)
        print(f"cannot restore the compiled crates: {error}", file=sys.stderr)
        return
    partial.rename(DEBUG)
    os.utime(copy)
    print(f"restored the compiled third-party crates in {time.monotonic() - begin:.0f} s")


def save() -> None:
    copy = CACHE / key()
    if copy.exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = CACHE / f".{copy.name}-{os.getpid()}"
    packages = third_party_packages()
    try:
        for folder in FOLDERS:
            (partial / folder).mkdir(parents=True)
            for entry in (DEBUG / folder).iterdir():
                if crate_of(entry.name) in packages:
                    copy_entry(entry, partial / folder / entry.name)
        partial.rename(copy)
    except OSError as error:  # Another run has saved them, or the disk is full.
        print(f"the compiled crates are not kept: {error}", file=sys.stderr)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    remove_old()


def remove_old() -> None:
    """Removes all but the copies that were used last, and what killed runs have left."""
    copies = sorted(CACHE.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    finished = [copy for copy in copies if not copy.name.startswith(".")]
    day_ago = time.time() - 24 * 3600
    left = [copy for copy in copies if copy.name.startswith(".") and copy.stat().st_mtime < day_ago]
    for copy in finished[COPIES:] + left:
        shutil.rmtree(copy, ignore_errors=True)


def copy_entry(source: Path, target: Path) -> None:
    """Copies a file or a folder with its times, which Cargo compares."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def crate_of(name: str) -> str:
    """Returns the crate of a file or a folder that Cargo named: `serde` of `libserde-0c1d.rlib`, `serde-0c1d` and `serde-0c1d.d`."""
    match = re.fullmatch(r"(lib)?(.+?)-[0-9a-f]{16}(\..*)?", name)
    return match[2].replace("-", "_") if match else ""


def third_party_packages() -> set[str]:
    """Returns the names of the packages and of their libraries, which may differ, with `_` in place of `-`."""
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"], cwd=ROOT, check=True, capture_output=True
    )
    kept, own = set(), set()
    for package in json.loads(metadata.stdout)["packages"]:
        names = {package["name"], *(target["name"] for target in package["targets"])}
        (kept if package["source"] else own).update(name.replace("-", "_") for name in names)
    return kept - own


def key() -> str:
    """Returns the digest of everything that determines the compiled crates."""
    compiler = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    packages = [package for package in lock["package"] if "source" in package]
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    members = [tomllib.loads((ROOT / member / "Cargo.toml").read_text()) for member in manifest["workspace"]["members"]]
    kinds = ["dependencies", "dev-dependencies", "build-dependencies"]
    used = [third_party(member.get(kind, {})) for member in members for kind in kinds]
    profiles = {name: value for name, value in os.environ.items() if name.startswith("CARGO_PROFILE") or name == "RUSTFLAGS"}
    dependencies = third_party(manifest["workspace"]["dependencies"])
    parts = [compiler, packages, manifest["profile"], dependencies, used, sorted(profiles.items())]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def third_party(dependencies: dict) -> dict:
    return {name: value for name, value in dependencies.items() if not name.startswith("feedline-")}


if __name__ == "__main__":
    main()
