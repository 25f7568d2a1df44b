"""Tests of downloaded programs, without a network."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from preparation import downloads  # noqa: E402
from preparation.downloads import Download, is_available, provide  # noqa: E402


@pytest.fixture
def written(tmp_path, monkeypatch) -> list[Path]:
    """The entries that were written by the download `tool`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "LINKS", tmp_path / "links")
    written = []

    def write(entry: Path) -> None:
        (entry / "program").write_text("content")
        written.append(entry)

    monkeypatch.setattr(downloads, "DOWNLOADS", {"tool": Download("sh", b"1.0", write)})
    return written


def test_a_program_is_downloaded_once_for_each_version(tmp_path, written, monkeypatch):
    for _ in range(2):
        assert (provide("tool") / "program").read_text() == "content"
    assert len(written) == 1
    newer = Download("sh", b"1.1", downloads.DOWNLOADS["tool"].write)
    monkeypatch.setattr(downloads, "DOWNLOADS", {"tool": newer})
    assert provide("tool").resolve() == written[1].resolve()
    assert len(written) == 2


def test_a_cached_program_needs_no_downloading_program(written, monkeypatch):
    missing = Download("a-program-that-is-missing", b"1.0", downloads.DOWNLOADS["tool"].write)
    provide("tool")
    monkeypatch.setattr(downloads, "DOWNLOADS", {"tool": missing, "other": Download(missing.program, b"", missing.write)})
    assert is_available("tool") and not is_available("other")
    assert (provide("tool") / "program").exists()
    with pytest.raises(SystemExit, match="a-program-that-is-missing is missing, which is needed for other"):
        provide("other")
    assert len(written) == 1


def test_a_failed_download_leaves_nothing(tmp_path, written, monkeypatch):
    def fail(entry: Path) -> None:
        (entry / "part").touch()
        sys.exit("no network")

    monkeypatch.setattr(downloads, "DOWNLOADS", {"tool": Download("sh", b"2", fail)})
    with pytest.raises(SystemExit, match="no network"):
        provide("tool")
    assert not list((tmp_path / "cache/feedline/downloads").glob("tool-*"))
    assert not (tmp_path / "links/tool").exists()
