"""Links a Python environment with the packages of a requirements file, which the cache of the user keeps.

Usage: environment.py LINK REQUIREMENTS [PIP_OPTION...]

An environment contains its own absolute path, so it is installed where it stays. It works through the link.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.cache import Cache, digest, is_link_to, remove_link, replace_link  # noqa: E402
from preparation.commands import ATTEMPTS, run  # noqa: E402

PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=5"]


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    link, requirements, *options = sys.argv[1:]
    prepare(Path(link), Path(requirements), options)


def prepare(link: Path, requirements: Path, options: list[str]) -> None:
    """Installs the environment unless the cache contains it. A link does not remain if this fails."""
    python = f"{sys.version} {os.path.realpath(sys.executable)}"
    key = digest(requirements.read_bytes(), "\0".join(options).encode(), python.encode())

    def install(entry: Path) -> None:
        print(f"preparing {link}", flush=True)
        run([sys.executable, "-m", "venv", entry])
        run([entry / "bin/python", *PIP, *options, "-r", requirements], attempts=ATTEMPTS)

    cache = Cache("environments")
    entry = cache.find(link.name, key)
    if not entry or not is_link_to(link, entry):
        remove_link(link)
        replace_link(link, cache.provide(link.name, key, install))
    cache.remove_unused()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
