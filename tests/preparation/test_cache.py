"""Tests of the cache: it is filled once, killed runs do no harm, and what nobody uses disappears."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from preparation import cache as caches  # noqa: E402
from preparation import commands  # noqa: E402
from preparation.cache import COMPLETE, Cache, digest  # noqa: E402

# Writes an entry with a command.
INTERRUPTED = """
import sys
from preparation.cache import Cache
from preparation.commands import run

Cache("kind").provide("name", "1", lambda entry: run(["sh", "-c", f"touch begun; {sys.argv[1]}"], entry))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Cache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Cache("kind")


def write_word(word: str):
    return lambda entry: (entry / "file").write_text(word)


def refuse(entry: Path) -> None:
    raise AssertionError(f"{entry} is written again")


def start_and_kill(cache: Cache, script: str) -> None:
    """Kills a run that waits for a command, which continues."""
    command = [sys.executable, "-B", "-c", INTERRUPTED, script]
    end = time.monotonic() + 60
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}) as process:
        while not (cache.directory / "name-1/begun").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)


def test_an_entry_is_written_once_for_each_digest(cache):
    first, second = (cache.provide("name", number, write_word(number)) for number in "12")
    assert cache.provide("name", "1", refuse) == first
    assert [(entry / "file").read_text() for entry in [first, second]] == ["1", "2"]
    assert cache.find("name", "3") is None


def test_a_failed_entry_leaves_nothing(cache):
    def fail(entry: Path) -> None:
        (entry / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.provide("name", "1", fail)
    assert not (cache.directory / "name-1").exists()


def test_an_entry_of_a_killed_run_is_written_again(cache):
    start_and_kill(cache, "sleep 0.1")
    entry = cache.provide("name", "1", write_word("whole"))
    assert sorted(path.name for path in entry.iterdir()) == [COMPLETE, "file"]


def test_a_command_that_outlives_a_killed_run_keeps_the_lock(cache, tmp_path):
    finished = tmp_path / "finished"
    start_and_kill(cache, f"sleep 0.5; touch {finished}")
    cache.provide("name", "1", lambda entry: (entry / "file").write_text(str(finished.exists())))
    assert (cache.directory / "name-1/file").read_text() == "True"


def test_two_runs_write_an_entry_once(cache, capsys):
    begun, go_on, writes = threading.Event(), threading.Event(), []

    def write(entry: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        writes.append(entry)

    runs = [threading.Thread(target=cache.provide, args=("name", "1", write)) for _ in range(2)]
    runs[0].start()
    assert begun.wait(60)
    runs[1].start()
    end, output = time.monotonic() + 60, ""
    while "waiting for another run that prepares name" not in output:
        assert time.monotonic() < end, output
        time.sleep(0.01)
        output += capsys.readouterr().out
    go_on.set()
    for run in runs:
        run.join()
    assert len(writes) == 1


def test_only_entries_that_were_not_used_for_days_are_removed(cache):
    entries = {name: cache.provide(name, "1", write_word(name)) for name in ["old", "used", "new"]}
    (cache.directory / "incomplete-1").mkdir()
    month_ago = time.time() - (caches.UNUSED_DAYS + 1) * 86400
    for path in [entries["old"] / COMPLETE, entries["used"] / COMPLETE, cache.directory / "incomplete-1"]:
        os.utime(path, (month_ago, month_ago))
    assert cache.find("used", "1")
    cache.remove_unused()
    assert sorted(path.name for path in cache.directory.glob("*-*")) == ["new-1", "used-1"]


def test_an_entry_that_is_being_written_is_not_removed(cache):
    def write(entry: Path) -> None:
        cache.remove_unused(days=-1)
        assert entry.exists()

    cache.provide("name", "1", write)
    cache.remove_unused(days=-1)
    assert not list(cache.directory.glob("*-*"))


def test_the_folder_follows_the_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/user")
    for variable, folder in {
        "/a": "/a/feedline",
        "": "/user/.cache/feedline",
        "b": "/user/.cache/feedline",
    }.items():
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
        assert str(caches.user_directory()) == folder


def test_an_unusable_folder_gives_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        SystemExit, match="cannot write to .*: Not a directory: set XDG_CACHE_HOME to a writable folder"
    ):
        Cache("kind").provide("name", "1", refuse)


def test_a_digest_depends_on_each_part():
    assert len({digest(b"ab", b"c"), digest(b"a", b"bc"), digest(b"abc")}) == 3


def test_a_download_is_tried_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "PAUSE_S", 0)
    monkeypatch.chdir(tmp_path)
    script = "echo >> calls; test $(wc -l < calls) = 3 || { echo 'no route' >&2; exit 1; }; echo done"
    assert commands.run(["sh", "-c", script], attempts=3) == "done\n"
    assert capsys.readouterr().err == "`sh -c` failed, trying again: no route\n" * 2


def test_a_command_that_always_fails_ends_the_program(monkeypatch):
    monkeypatch.setattr(commands, "PAUSE_S", 0)
    with pytest.raises(SystemExit, match="(?s)`sh -c .*` failed in .*:\nno route"):
        commands.run(["sh", "-c", "echo no route >&2; false"], attempts=2)
