"""Virtual environments under target/peers, one per requirements-NAME.txt, recreated when that file changes."""

import shutil
import sys

from paths import HERE, TARGET, Failed, output


def python(name):
    """Returns the interpreter of an environment that `ensure` has created."""
    return TARGET / f"env-{name}/bin/python"


def ensure(name):
    """Creates the environment if it does not exist."""
    requirements = HERE / f"requirements-{name}.txt"
    folder = TARGET / f"env-{name}"
    installed = folder / "requirements.txt"
    if installed.exists() and installed.read_bytes() == requirements.read_bytes():
        return
    print(f"installing {requirements.name} into {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        output(sys.executable, "-m", "venv", folder)
        output(python(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
    except Failed as failure:
        shutil.rmtree(folder, ignore_errors=True)
        raise Failed(f"cannot install {requirements.name}: {failure}") from None
    shutil.copy(requirements, installed)
