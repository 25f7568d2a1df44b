"""Tests of environments, without packages and without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from preparation import commands  # noqa: E402
from preparation.environment import prepare  # noqa: E402


@pytest.fixture
def requirements(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "requirements.txt"
    file.write_text("# No packages.\n")
    return file


def environments(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/feedline/environments").glob("python-*"))


def test_an_environment_works_through_its_link(tmp_path, requirements, capsys):
    link = tmp_path / "target/python"
    (link / "bin").mkdir(parents=True)  # An earlier environment, which was not in the cache.
    for _ in range(2):
        prepare(link, requirements, ["--no-deps"])
    assert capsys.readouterr().out == f"preparing {link}\n"
    [entry] = environments(tmp_path)
    prefix = [link / "bin/python", "-c", "import sys; print(sys.prefix)"]
    assert Path(subprocess.check_output(prefix, text=True).strip()).resolve() == entry
    script = subprocess.check_output([link / "bin/pip", "--version"], text=True)
    assert f"{entry}/" in script or f"{link}/" in script, script

    shutil.rmtree(tmp_path / "target")
    assert (entry / "bin/python").exists()
    prepare(link, requirements, ["--no-deps"])
    assert capsys.readouterr().out == ""
    assert (link / "bin/python").exists()


def test_other_options_are_another_environment(tmp_path, requirements):
    link, other = tmp_path / "a/python", tmp_path / "b/python"
    prepare(link, requirements, [])
    prepare(other, requirements, ["--no-deps"])
    assert link.resolve() != other.resolve()
    assert len(environments(tmp_path)) == 2


def test_a_failed_installation_leaves_nothing(tmp_path, requirements, monkeypatch, capsys):
    monkeypatch.setattr(commands, "PAUSE_S", 0)
    link = tmp_path / "target/python"
    prepare(link, requirements, [])
    requirements.write_text(f"{tmp_path}/missing-1.0-py3-none-any.whl\n")
    with pytest.raises(SystemExit, match="missing-1.0-py3-none-any.whl"):
        prepare(link, requirements, [])
    assert capsys.readouterr().err.count("failed, trying again: ") == 2
    assert not link.is_symlink()
    assert len(environments(tmp_path)) == 1, "only the environment of the first installation"
