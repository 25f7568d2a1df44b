"""Keeps the compiled crates of a build in the user's cache, so that a fresh clone does not compile them again.

Usage: crates.py restore  copies them into target/debug, if it does not exist
       crates.py save     copies them from target/debug into the cache, if it does not have them

The entry of the third-party crates is determined by the compiler, the packages in Cargo.lock, their features and the profiles. The
entry of the workspace's crates is that of the last build of a clone in the same folder, because some crates contain its path. It
contains a digest of each source file and folder: one with the same content gets the time that it had in that build, and any other
is newer than all crates. Cargo checks each restored crate as usual: one that does not fit costs time, and is never used.
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
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.cache import COMPLETE, Cache, digest  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# The folders of Cargo with the state of each crate, the results of build scripts, and the libraries.
FOLDERS = [".fingerprint", "build", "deps"]
DEPENDENCIES = ["dependencies", "dev-dependencies", "build-dependencies"]
# Digests and times of the files and folders of the clone in which the workspace's crates were built.
SOURCES = "sources.json"
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
    digest = entry_digest(root)
    entry = cache.find("debug", digest)
    if debug.exists() or entry is None:
        return
    begin = time.monotonic()
    partial = debug.with_name(".debug.partial")
    shutil.rmtree(partial, ignore_errors=True)  # The run that copied it was killed.
    try:
        copy_entry(entry, partial)
        own = restore_own(root, cache, digest, partial)
        partial.rename(debug)
    except (OSError, shutil.Error) as error:  # Without them, the build only takes longer.
        shutil.rmtree(partial, ignore_errors=True)
        print(f"cannot restore the compiled crates from {entry}: {error}", file=sys.stderr)
        return
    print(f"restored the compiled third-party crates{own} in {time.monotonic() - begin:.0f} s", flush=True)


def restore_own(root: Path, cache: Cache, digest: str, partial: Path) -> str:
    """Copies the workspace's crates into a folder, and returns what it did."""
    with cache.lock_entry(own_name(root), digest) as entry:
        if entry is None:
            return ""
        copy_entry(entry, partial)
        before = json.loads((entry / SOURCES).read_text())
    sources = read_sources(root)
    unchanged = 0
    # Cargo compares times. A changed file may be older than the crates, for example in an unpacked archive.
    now = time.time_ns()
    for name, (content, _) in sources.items():
        known, changed_at = before.get(name, (None, now))
        os.utime(root / name, ns=(now, changed_at if known == content else now))
        unchanged += known == content
    return f", and those of the workspace with {len(sources) - unchanged} changed files and folders,"


def save(root: Path, cache: Cache) -> None:
    """Saves the crates of the last complete build."""
    own, digest = own_crates(root), entry_digest(root)

    def save_own(entry: Path) -> None:
        copy_crates(root, entry, lambda crate: crate in own)
        (entry / SOURCES).write_text(json.dumps(read_sources(root)))

    try:
        cache.provide("debug", digest, lambda entry: copy_crates(root, entry, lambda crate: crate not in own))
        if not is_saved(root, cache, digest):
            cache.replace(own_name(root), digest, save_own)
    except (OSError, SystemExit, shutil.Error) as error:
        print(f"cannot keep the compiled crates in {cache.directory}: {error}", file=sys.stderr)
    cache.remove_unused(UNUSED_DAYS)


def is_saved(root: Path, cache: Cache, digest: str) -> bool:
    """Whether the cache has the workspace's crates of these sources."""
    with cache.lock_entry(own_name(root), digest) as entry:
        if entry is None:
            return False
        saved, now = json.loads((entry / SOURCES).read_text()), read_sources(root)
        return {name: content for name, (content, _) in saved.items()} == {name: content for name, (content, _) in now.items()}


def own_name(root: Path) -> str:
    return f"own.{sha256(str(root.resolve()).encode())[:16]}"


def read_sources(root: Path) -> dict[str, tuple[str, int]]:
    """Returns the digests of the content of all files and folders below a folder, and the times of their last changes in nanoseconds."""
    sources = {}
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in ["target", ".git"]]
        else:
            content = sha256("\0".join(sorted([*folders, *files])).encode())
            sources[str(Path(folder).relative_to(root))] = (content, Path(folder).stat().st_mtime_ns)
        for file in (Path(folder, name) for name in files):
            if not file.is_symlink():
                sources[str(file.relative_to(root))] = (sha256(file.read_bytes()), file.stat().st_mtime_ns)
    return sources


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def copy_entry(entry: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns(COMPLETE, SOURCES)
    shutil.copytree(entry, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)


def copy_crates(root: Path, entry: Path, is_copied: Callable[[str], bool]) -> None:
    debug = root / "target/debug"
    for folder in FOLDERS:
        (entry / folder).mkdir()
        for source in (debug / folder).iterdir():
            if is_copied(crate_of(source.name)):
                copy(source, entry / folder / source.name)


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
