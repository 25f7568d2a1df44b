"""The crates in the binary, with their licences, from the output of `cargo metadata`."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The package that contains the binary.
PACKAGE = "feedline-node"

TARGETS = {"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}

LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
# Sources and data whose names also begin like that of a licence.
NOT_LICENCES = (".rs", ".c", ".h", ".py", ".json", ".toml")


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    licence: str  # an SPDX expression, or NOASSERTION
    folder: Path
    is_own: bool  # whether it belongs to this workspace


def run_cargo_metadata(repository: Path, architecture: str) -> dict:
    """Runs `cargo metadata`, which downloads missing sources."""
    target = TARGETS[architecture]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=repository).stdout)


def crates_in_binary(metadata: dict) -> list[Crate]:
    """Returns the crates that the binary and build scripts need, but not those of tests, by name and version."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    pending = [identity for identity, package in packages.items() if package["name"] == PACKAGE]
    if not pending:
        raise ValueError(f"the metadata does not contain the package {PACKAGE}, which builds the binary")
    reached = set()
    while pending:
        identity = pending.pop()
        if identity in reached:
            continue
        reached.add(identity)
        for dependency in nodes[identity]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                pending.append(dependency["pkg"])
    crates = [_crate(packages[identity]) for identity in reached]
    return sorted(crates, key=lambda crate: (crate.name, crate.version))


def licence_texts(crates: list[Crate]) -> str:
    """Returns the texts of all licences. A text that several crates share appears once, after their names."""
    users: dict[str, list[str]] = {}
    for crate in crates:
        if crate.is_own:
            continue
        for path in sorted(crate.folder.rglob("*")):
            is_licence = path.name.upper().startswith(LICENCE_FILES) and path.suffix not in NOT_LICENCES
            if is_licence and path.is_file():
                text = path.read_text(errors="replace").strip()
                place = f"{crate.name} {crate.version}: {path.relative_to(crate.folder)}"
                users.setdefault(text, []).append(place)
    line = "=" * 80
    return "".join(f"{line}\n{chr(10).join(places)}\n{line}\n\n{text}\n\n" for text, places in users.items())


def _crate(package: dict) -> Crate:
    # Old manifests separate alternatives with a slash.
    licence = (package["license"] or "NOASSERTION").replace("/", " OR ").replace("  ", " ")
    return Crate(
        package["name"],
        package["version"],
        licence,
        Path(package["manifest_path"]).parent,
        package["source"] is None,
    )
