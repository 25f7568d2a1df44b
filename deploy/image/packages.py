"""The list of Debian packages in an image, which `deploy/Dockerfile` also reads."""

from pathlib import Path

LIST = Path(__file__).parent / "packages.txt"

# The release of Debian. Its glibc must be at least as new as the one that the binary was linked with.
SUITE = "bookworm"

# Name of each variant, and the suffix of its tag.
VARIANTS = {"default": "", "python": "-python"}


def read_packages(variant: str, text: str | None = None) -> list[str]:
    """Returns the sorted names of the packages for a variant."""
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant `{variant}`: expected {' or '.join(VARIANTS)}")
    names = set()
    for number, line in enumerate((LIST.read_text() if text is None else text).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2 or any(word not in VARIANTS for word in words[1:]):
            raise ValueError(f"{LIST.name}:{number}: expected a package and optionally a variant, found `{line}`")
        if words and words[1:] in ([], [variant]):
            names.add(words[0])
    return sorted(names)
