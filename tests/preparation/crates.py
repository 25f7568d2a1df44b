"""Keeps the compiled third-party crates of a build in the user's cache, so that a fresh clone does not compile them again.

Usage: crates.py restore  copies them into target/debug, if it does not exist
       crates.py save     copies them from target/debug into the cache, if it does not have them

An entry is determined by the compiler, the third-party packages in Cargo.lock, their features and the profiles. Cargo checks each
restored crate as usual: one that does not fit costs time, and is never used. The crates of the workspace are not kept.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.cache import COMPLETE, Cache, digest  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# The folders of Cargo with the state of each crate, the results of build scripts, and the libraries.
FOLDERS = [".fingerprint", "build", "deps"]
DEPENDENCIES = ["dependencies", "dev-dependencies", "build-dependencies"]
# Old entries have gigabytes, and are of use only for older commits.
UNUSED_DAYS = 7


def main() -> None:
    match sys.argv[1:]:
        case ["restore"]:
            restore(ROOT, Cache("crates"))
        case ["save"]:
            save(ROOT, Cache("crates"))
        case _:
            sys.exit(__doc__)


def restore(root: Path, cache: Cache) -> None:
    debug = root / "target/debug"
    entry = cache.find("debug", entry_digest(root))
    if debug.exists() or entry is None:
        return
    begin = time.monotonic()
    partial = debug.with_name(".debug.partial")
    shutil.rmtree(partial, ignore_errors=True)  # The run that copied it was killed.
    try:
        shutil.copytree(entry, partial, symlinks=True, ignore=shutil.ignore_patterns(COMPLETE))
        partial.rename(debug)
    except (OSError, shutil.Error) as error:  # Without them, the build only takes longer.
        shutil.rmtree(partial, ignore_errors=True)
        print(f"cannot restore the compiled crates from {entry}: {error}", file=sys.stderr)
        return
    print(f"restored the compiled third-party crates in {time.monotonic() - begin:.0f} s", flush=True)


def save(root: Path, cache: Cache) -> None:
    """Saves the crates of the last complete build."""
    debug, own = root / "target/debug", own_crates(root)

    def write(entry: Path) -> None:
        for folder in FOLDERS:
            (entry / folder).mkdir()
            for source in (debug / folder).iterdir():
                if crate_of(source.name) not in own:
                    copy(source, entry / folder / source.name)

    try:
        cache.provide("debug", entry_digest(root), write)
    except (OSError, SystemExit) as error:
        print(f"cannot keep the compiled crates in {cache.directory}: {error}", file=sys.stderr)
    cache.remove_unused(UNUSED_DAYS)


def copy(source: Path, target: Path) -> None:
    """Copies a file or a folder with its times, which Cargo compares."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def crate_of(name: str) -> str:
    """Returns the crate of a file or a folder of Cargo: `serde_json` of `libserde_json-0123456789abcdef.rlib`, and `serde_json` of
    `serde-json-0123456789abcdef`."""
    match = re.fullmatch(r"(lib)?(.+?)-[0-9a-f]{16}(\..*)?", name)
    return match[2].replace("-", "_") if match else ""


def own_crates(root: Path) -> set[str]:
    """Returns the names of the workspace's packages and of their targets, with `_` in place of `-`, and the empty name."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    metadata = subprocess.run(command, cwd=root, check=True, capture_output=True)
    names = {""}
    for package in json.loads(metadata.stdout)["packages"]:
        names |= {package["name"], *(target["name"] for target in package["targets"])}
    return {name.replace("-", "_") for name in names}


def entry_digest(root: Path) -> str:
    compiler = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    lock = tomllib.loads((root / "Cargo.lock").read_text())
    packages = [package for package in lock["package"] if "source" in package]
    manifest = tomllib.loads((root / "Cargo.toml").read_text())
    workspace = manifest["workspace"]
    members = [tomllib.loads((root / member / "Cargo.toml").read_text()) for member in workspace["members"]]
    tables = [table.get(kind, {}) for table in [workspace, *members] for kind in DEPENDENCIES]
    dependencies = [sorted(without_own(table).items()) for table in tables]
    flags = sorted(item for item in os.environ.items() if item[0].startswith("CARGO_PROFILE") or item[0] == "RUSTFLAGS")
    parts = [compiler, packages, manifest.get("profile"), dependencies, flags]
    return digest(*(repr(part).encode() for part in parts))


def without_own(dependencies: dict) -> dict:
    """Returns dependencies without the crates of the workspace."""
    return {name: value for name, value in dependencies.items() if not name.startswith("feedline-")}


if __name__ == "__main__":
    main()
