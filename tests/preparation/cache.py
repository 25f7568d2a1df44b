"""The user's cache of what files determine and what is expensive to prepare: the folder `feedline` in XDG_CACHE_HOME.

All clones and versions of the repository share it. An entry is a folder KIND/NAME-DIGEST, which never moves. It is
complete when it contains the file `.complete`, which is written last. Nothing here says where an entry is used.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMPLETE = ".complete"
UNUSED_DAYS = 30


class Cache:
    def __init__(self, kind: str) -> None:
        self.directory = user_directory() / kind

    def find(self, name: str, digest: str) -> Path | None:
        """Returns the complete entry, which counts as used, or None."""
        entry = self.directory / f"{name}-{digest}"
        if not (entry / COMPLETE).exists():
            return None
        with suppress(OSError):  # The cache may be read-only.
            os.utime(entry / COMPLETE)
        return entry

    def provide(self, name: str, digest: str, write: Callable[[Path], None]) -> Path:
        """Returns the complete entry. `write` fills its folder if the entry is missing."""
        if entry := self.find(name, digest):
            return entry
        with self._lock(name):
            if entry := self.find(name, digest):  # Another run has written it.
                return entry
            return self._write(name, digest, write)

    def replace(self, name: str, digest: str, write: Callable[[Path], None]) -> None:
        """Writes an entry, and removes all others of its name, unless another run uses one of them. Its users lock it."""
        with self._lock(name, wait=False) as is_locked:
            if is_locked:
                for other in self.directory.glob(f"{name}-*"):
                    remove(other)
                self._write(name, digest, write)

    @contextmanager
    def lock_entry(self, name: str, digest: str) -> Iterator[Path | None]:
        """Yields an entry that no other run replaces meanwhile, or None."""
        with self._lock(name, wait=False) as is_locked:
            yield self.find(name, digest) if is_locked else None

    def _write(self, name: str, digest: str, write: Callable[[Path], None]) -> Path:
        entry = self.directory / f"{name}-{digest}"
        remove(entry)  # It is replaced, or the run that wrote it was killed.
        entry.mkdir()
        try:
            write(entry)
        except BaseException:
            remove(entry)
            raise
        (entry / COMPLETE).touch()
        return entry

    def keep_latest(self, pattern: str, count: int) -> None:
        """Removes all but the last used entries whose names match a pattern, unless another run uses them."""
        complete = [entry for entry in self.directory.glob(f"{pattern}-*") if (entry / COMPLETE).exists()]
        for entry in sorted(complete, key=last_use, reverse=True)[count:]:
            with self._lock(entry.name.rpartition("-")[0], wait=False) as is_locked:
                if is_locked:
                    remove(entry)

    def remove_unused(self, days: float = UNUSED_DAYS) -> None:
        """Removes the entries that no run has used for this number of days."""
        for entry in [path for path in self.directory.glob("*-*") if path.is_dir()]:
            with self._lock(entry.name.rpartition("-")[0], wait=False) as is_locked:
                if is_locked and time.time() - last_use(entry) > days * 86400:
                    remove(entry)

    @contextmanager
    def _lock(self, name: str, wait: bool = True) -> Iterator[bool]:
        """Locks all entries of a name. Yields whether this succeeded, which is certain with `wait`.

        Children inherit the lock if they are started with `close_fds=False`. A command that outlives a killed run
        therefore keeps others from writing the same files.
        """
        locks = self.directory / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            file = os.open(locks / name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if not wait:
                yield False
                return
            raise SystemExit(
                f"cannot write to {locks}: {error.strerror}: set XDG_CACHE_HOME to a writable folder"
            ) from None
        try:
            os.set_inheritable(file, True)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    yield False
                    return
                print(f"waiting for another run that prepares {name}", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield True
        finally:
            os.close(file)


def is_link_to(link: Path, entry: Path) -> bool:
    return link.is_symlink() and Path(os.readlink(link)) == entry


def replace_link(link: Path, entry: Path) -> None:
    """Links an entry. Another run may replace the same link at the same time."""
    if is_link_to(link, entry):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    partial = link.with_name(f".{link.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)  # A killed process had the same id.
    partial.symlink_to(entry)
    partial.replace(link)


def remove_link(link: Path) -> None:
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)  # A folder that is not in the cache.
    else:
        link.unlink(missing_ok=True)


def user_directory() -> Path:
    # The specification of XDG_CACHE_HOME says to ignore relative paths.
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "feedline"


def digest(*parts: bytes) -> str:
    """Returns a digest of what determines an entry on machines of this kind."""
    machine = f"{platform.system()} {platform.machine()}".encode()
    hashed = hashlib.sha256()
    for part in (machine, *parts):
        hashed.update(len(part).to_bytes(8) + part)
    return hashed.hexdigest()[:16]


def last_use(entry: Path) -> float:
    """Returns the time of the last use of an entry, or of the last change of an incomplete one."""
    return (entry / COMPLETE if (entry / COMPLETE).exists() else entry).stat().st_mtime


def remove(entry: Path) -> None:
    # First the mark, so that an interrupted removal leaves an incomplete entry.
    (entry / COMPLETE).unlink(missing_ok=True)
    if entry.exists():
        shutil.rmtree(entry)
