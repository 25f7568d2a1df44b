"""Virtual environments under target/peers, one for each requirements-NAME.txt, made anew when that file changes."""

import shutil
import sys

from places import HERE, TARGET, Failed, output


def python(name):
    """The interpreter of an environment that `ensure` has made."""
    return TARGET / f"env-{name}/bin/python"


def ensure(name):
    """Makes the environment if it is not there."""
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
        raise Failed(f"{requirements.name} cannot be installed: {failure}") from None
    shutil.copy(requirements, installed)
