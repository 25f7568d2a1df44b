"""Tests of the report of phases, with short commands in place of builds and tests."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/phases.py"


@pytest.fixture
def phases(tmp_path, monkeypatch):
    specification = importlib.util.spec_from_file_location("phases", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "phases")
    return module


def shell(text: str) -> list[str]:
    return ["bash", "-c", text]


def test_the_table_has_a_line_for_each_phase_and_the_end_of_a_failed_one(phases, capfd):
    assert phases.run("build", shell("echo built"), is_quiet=False) == 0
    assert phases.run("Rust tests", shell("echo first; echo second >&2; exit 3"), is_quiet=True) == 3
    assert capfd.readouterr().out == "built\nfirst\nsecond\n"
    report = phases.report(phases.load_phases())
    assert [line.split("  ")[0] for line in report[:4]] == ["phase", "build", "Rust tests", "total"]
    assert report[2].endswith("failed with 3")
    assert report[4:] == [f"Rust tests failed; its output is {phases.log_file('Rust tests')}", "first", "second"]


def test_a_quiet_phase_prints_nothing_if_it_succeeds(phases, capfd):
    assert phases.run("environments", shell("echo much"), is_quiet=True) == 0
    assert capfd.readouterr().out == ""


def test_a_command_that_is_killed_fails(phases):
    assert phases.run("tests", shell("kill -9 $$"), is_quiet=True) == 137


def test_a_phase_that_ends_with_the_run_is_not_reported(tmp_path):
    script = tmp_path / "ci/phases.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())
    process = subprocess.Popen([sys.executable, script, "quiet", "tools", "bash", "-c", "echo begun; exec sleep 1000"])
    log = tmp_path / "target/phases/tools.log"
    while not (log.exists() and log.read_text() == "begun\n"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert not log.with_suffix(".json").exists()


def test_a_phase_that_takes_too_long_is_killed_with_its_descendants(phases, monkeypatch, tmp_path):
    monkeypatch.setenv("PHASE_LIMIT_MINUTES", "0.02")
    child = tmp_path / "child"
    begun = f"echo begun; sleep 1000 & echo $! > {child}; wait"
    assert phases.run("tests", shell(begun), is_quiet=True) == 128 + signal.SIGKILL
    first, limit, *processes = phases.log_file("tests").read_text().splitlines()
    assert (first, limit) == ("begun", "the phase did not end within 0.02 minutes; its processes were:")
    assert len(processes) == 2 and "bash -c echo begun" in processes[0], processes
    assert processes[1].split() == [child.read_text().strip(), "sleep", "1000"]
    assert phases.failures(["no test", first, limit, *processes, *processes], 4) == [limit, processes[0], "no test", first]


def test_a_process_that_outlives_its_phase_does_not_prolong_it(phases, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(phases, "OUTPUT_AFTER_END_S", 0.1)
    child = tmp_path / "child"
    assert phases.run("tests", shell(f"sleep 1000 & echo $! > {child}"), is_quiet=False) == 0
    os.kill(int(child.read_text()), signal.SIGKILL)
    assert capfd.readouterr().out == "tests: a process that outlives the phase keeps its output open\n"


LIBTEST = """\
running 3 tests
test a::first ... FAILED
failures:

---- a::first stdout ----

thread 'a::first' (1) panicked at src/a.rs:3:5:
assertion `left == right` failed
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind
note: Some details are omitted
the log of process 12 is /tmp/role-logs/12.log

---- b::second stdout ----

thread 'b::second' (2) panicked at src/b.rs:3:5:
no worker


failures:
    a::first
    b::second

test result: FAILED. 1 passed; 2 failed; 0 ignored
error: test failed, to rerun pass `--lib`
"""


def test_the_names_of_all_failed_rust_tests_come_first(phases):
    assert phases.failures(LIBTEST.splitlines(), 30) == [
        "test a::first failed",
        "test b::second failed",
        "a::first:",
        "  assertion `left == right` failed",
        "    left: 1",
        "   right: 2",
        "  the log of process 12 is /tmp/role-logs/12.log",
        "b::second:",
        "  no worker",
    ]
    assert phases.failures(LIBTEST.splitlines(), 3)[:2] == ["test a::first failed", "test b::second failed"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "x\nFAILED tests/test_a.py::test_b - AssertionError: 1\n1 failed, 2 passed",
            ["FAILED tests/test_a.py::test_b - AssertionError: 1"],
        ),
        (
            "   Compiling a\nerror[E0425]: cannot find value `x`\n --> src/lib.rs:1:1\n  |",
            ["error[E0425]: cannot find value `x`", " --> src/lib.rs:1:1"],
        ),
        (
            "the input is in target/x\nerror: test failed, to rerun pass `--test fuzz`",
            ["the input is in target/x", "error: test failed, to rerun pass `--test fuzz`"],
        ),
    ],
)
def test_other_failures_are_found(phases, log, expected):
    assert phases.failures(log.splitlines(), 10) == expected
