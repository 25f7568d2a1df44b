"""Selection of the Prometheus programs, and the message for a missing one."""

import shutil

import prometheus
import pytest

from skips import give_up


@pytest.fixture(autouse=True)
def no_built_program(monkeypatch, tmp_path):
    monkeypatch.setattr(prometheus, "BUILT", tmp_path / "built")


def create_program(path) -> str:
    path.write_text("")
    path.chmod(0o755)
    return str(path)


def test_the_variable_names_all_programs(monkeypatch, tmp_path):
    programs = [create_program(tmp_path / name) for name in ("old", "new")]
    monkeypatch.setenv("PROMETHEUS", ":".join(programs))
    assert prometheus.find_prometheuses() == programs
    assert prometheus.missing_prometheus() is None


def test_the_installed_program_precedes_the_built_one(monkeypatch, tmp_path):
    installed = create_program(tmp_path / "prometheus")
    built = create_program(prometheus.BUILT)
    monkeypatch.delenv("PROMETHEUS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find_prometheuses() == [installed, built]


def test_one_sentence_states_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("PROMETHEUS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("prometheus") is None
    assert prometheus.missing_prometheus() == prometheus.MISSING
    monkeypatch.setenv("PROMETHEUS", "absent")
    assert prometheus.missing_prometheus().startswith("PROMETHEUS names absent, which is not a program")


@pytest.mark.parametrize(("variable", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_program_fails_only_in_continuous_integration(monkeypatch, variable, outcome):
    monkeypatch.setenv("CI", variable)
    with pytest.raises(outcome, match="a sentence"):
        give_up("a sentence")
