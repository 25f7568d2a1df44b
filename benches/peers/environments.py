"""Virtual environments under target/peers, one for each requirements-NAME.txt, made anew when that file changes."""

import shutil
import subprocess
import sys

from places import HERE, TARGET


def python(name):
    """The interpreter of an environment that `ensure` has made."""
    return TARGET / f"env-{name}/bin/python"


def ensure(name):
    """Makes the environment if it is not there: whether it is. What went wrong is said in one line."""
    requirements = HERE / f"requirements-{name}.txt"
    folder = TARGET / f"env-{name}"
    installed = folder / "requirements.txt"
    if installed.exists() and installed.read_bytes() == requirements.read_bytes():
        return True
    print(f"installing {requirements.name} into {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
            print(f"not installed, so its rows are missing: {requirements.name}: {lines[-1]}", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            return False
    shutil.copy(requirements, installed)
    return True
