"""Keeps the compiled crates of a build in the user's cache, so that a fresh clone does not compile them again.

Usage: crates.py restore  copies them into target/debug, if it does not exist
       crates.py save     copies them from target/debug into the cache, if it does not have them

The entry of the third-party crates is determined by the compiler, the packages in Cargo.lock, their features and the profiles. The
entry of the workspace's crates is that of the last build of a clone in the same folder, because some crates contain its path. It
contains a digest of each source file and folder: one with the same content gets the time that it had in that build, and any other
is newer than all crates. Cargo checks each restored crate as usual. It does not notice that a crate was compiled with other files of
the same third-party crates, so the entry is only used with those that it was saved with.
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
# The third-party crates that the workspace's crates were compiled with, and the digests and times of the files of their clone.
BUILD = "build.json"
# Old entries have gigabytes, and are of use only for older commits.
UNUSED_DAYS = 7
MAX_OWN_ENTRIES = 2


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
        restored = "third-party crates"
        with cache.lock_entry(own_name(root), digest) as own:
            if own is not None and (build := load_build(own))["third_party"] == identity(entry, entry):
                copy_entry(own, partial)
                changed = restore_times(root, build["sources"])
                restored = f"crates, {changed} files and folders have changed,"
        partial.rename(debug)
    except (OSError, shutil.Error, ValueError) as error:  # Without them, the build only takes longer.
        shutil.rmtree(partial, ignore_errors=True)
        print(f"cannot restore the compiled crates from {cache.directory}: {error}", file=sys.stderr)
        return
    print(f"restored the compiled {restored} in {time.monotonic() - begin:.0f} s", flush=True)


def restore_times(root: Path, before: dict) -> int:
    """Gives unchanged files and folders the times that they had in a build. Returns the number of the others."""
    sources = read_sources(root)
    is_changed = {name: before.get(name, [None])[0] != content for name, (content, _) in sources.items()}
    # Cargo compares times. A changed file may be older than the crates, for example in an unpacked archive.
    now = time.time_ns()
    for name in sources:
        # In a folder with other names, the compiler may find other files.
        keeps_time = not is_changed[name] and not is_changed.get(str(Path(name).parent), False)
        os.utime(root / name, ns=(now, before[name][1] if keeps_time else now), follow_symlinks=False)
    return sum(is_changed.values())


def save(root: Path, cache: Cache) -> None:
    """Saves the crates of the last complete build."""
    own, digest, name = own_crates(root), entry_digest(root), own_name(root)
    try:
        third_party = cache.provide("debug", digest, lambda entry: copy_crates(root, entry, lambda crate: crate not in own))
        build = {"third_party": identity(root / "target/debug", third_party), "sources": read_sources(root)}

        def save_own(entry: Path) -> None:
            copy_crates(root, entry, lambda crate: crate in own)
            (entry / BUILD).write_text(json.dumps(build))

        with cache.lock_entry(name, digest) as entry:
            is_saved = entry is not None and contents(load_build(entry)) == contents(build)
        if not is_saved and build["third_party"] == identity(third_party, third_party):
            cache.replace(name, digest, save_own)
        cache.keep_latest("own.*", MAX_OWN_ENTRIES)
        cache.remove_unused(UNUSED_DAYS)
    except (OSError, SystemExit, shutil.Error, ValueError) as error:
        print(f"cannot keep the compiled crates in {cache.directory}: {error}", file=sys.stderr)


def load_build(entry: Path) -> dict:
    try:
        return json.loads((entry / BUILD).read_text())
    except (OSError, ValueError):  # The entry is damaged, and is replaced.
        return {"third_party": "", "sources": {}}


def contents(build: dict) -> tuple[str, dict[str, str]]:
    """Returns what determines the crates of a build: all but the times of the files."""
    return build["third_party"], {name: content for name, (content, _) in build["sources"].items()}


def identity(folder: Path, entry: Path) -> str:
    """Returns a digest of the sizes and times of files in a folder of Cargo: of the third-party libraries that an entry contains."""
    digest = hashlib.sha256()
    for file in sorted((entry / "deps").iterdir()):
        found = folder / "deps" / file.name
        state = (found.stat().st_size, found.stat().st_mtime_ns) if found.exists() else None
        digest.update(repr((file.name, state)).encode())
    return digest.hexdigest()


def own_name(root: Path) -> str:
    return f"own.{sha256(str(root.resolve()).encode())[:16]}"


def read_sources(root: Path) -> dict[str, tuple[str, int]]:
    """Returns the digests of the content of all files and folders below a folder, and the times of their last changes in nanoseconds."""
    sources = {}
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in ["target", ".git"]]
        else:
            content = sha256(os.fsencode("\0".join(sorted([*folders, *files]))))
            sources[str(Path(folder).relative_to(root))] = (content, Path(folder).stat().st_mtime_ns)
        for file in (Path(folder, name) for name in files):
            if file.is_symlink():
                content = os.fsencode(os.readlink(file))
            elif file.is_file():
                content = file.read_bytes()
            else:  # A socket or a pipe.
                continue
            sources[str(file.relative_to(root))] = (sha256(content), file.lstat().st_mtime_ns)
    return sources


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def copy_entry(entry: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns(COMPLETE, BUILD)
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
    flags = sorted(item for item in os.environ.items() if item[0].startswith("CARGO_PROFILE") or item[0] == "RUSTFLAGS")
    parts = [compiler, packages, manifest.get("profile"), features(root, manifest["workspace"]), flags]
    return digest(*(repr(part).encode() for part in parts))


def features(root: Path, workspace: dict) -> list:
    """Returns the features of the third-party packages, or what determines them if Cargo has not downloaded all packages."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    metadata = subprocess.run(command, cwd=root, capture_output=True)
    if metadata.returncode == 0:
        nodes = json.loads(metadata.stdout)["resolve"]["nodes"]
        return sorted((node["id"], node["features"]) for node in nodes if node["id"].startswith("registry+"))
    members = [tomllib.loads((root / member / "Cargo.toml").read_text()) for member in workspace["members"]]
    tables = [table.get(kind, {}) for table in [workspace, *members] for kind in DEPENDENCIES]
    return [sorted(without_own(table).items()) for table in tables]


def without_own(dependencies: dict) -> dict:
    """Returns dependencies without the crates of the workspace."""
    return {name: value for name, value in dependencies.items() if not name.startswith("feedline-")}


if __name__ == "__main__":
    main()
