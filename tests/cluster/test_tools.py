"""`tools.py --check` reports missing tools before continuous integration builds anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).with_name("tools.py")


@pytest.mark.parametrize(("variable", "status", "outcome"), [("", 0, "are skipped"), ("true", 1, "fail")])
def test_a_missing_go_fails_only_in_continuous_integration(tmp_path, variable, status, outcome):
    command = [sys.executable, "-B", TOOLS, "--check", "base", "crds"]
    variables = {"PATH": str(tmp_path), "CI": variable, "FEEDLINE_CLUSTER_TOOLS": str(tmp_path / "tools")}
    result = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert result.returncode == status, result
    assert f"the tests on a cluster {outcome}: Go is missing: install Go 1." in result.stderr
    assert not (tmp_path / "tools").exists(), "a check builds nothing"
