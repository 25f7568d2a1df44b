"""Links programs of the tests that are downloaded once for each user, in the folder `target/downloads`.

Usage: downloads.py NAME...

The names are `kafka` (the jars of the brokers), `registry` (a schema registry) and `azurite` (an emulator of Azure's store).
"""

import hashlib
import http.client
import shutil
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation.cache import Cache, digest, replace_link  # noqa: E402
from preparation.commands import ATTEMPTS, PAUSE_S, run  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
LINKS = REPOSITORY / "target/downloads"
POM = REPOSITORY / "tests/kafka/pom.xml"
REGISTRY_VERSION = "3.0.9"
REGISTRY_URL = (
    "https://repo.maven.apache.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{REGISTRY_VERSION}/apicurio-registry-app-{REGISTRY_VERSION}-all.tar.gz"
)
REGISTRY_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
AZURITE = "azurite@3.37.0"


@dataclass(frozen=True)
class Download:
    # A program that writes the entry.
    program: str
    # What determines the entry.
    source: bytes
    write: Callable[[Path], None]


def write_kafka(entry: Path) -> None:
    # Maven writes beside the file that it reads.
    pom = shutil.copy(POM, entry / "pom.xml")
    command = ["mvn", "--quiet", "--batch-mode", "--file", pom, "dependency:copy-dependencies"]
    run([*command, f"-DoutputDirectory={entry}/jars"], attempts=ATTEMPTS)


def write_registry(entry: Path) -> None:
    # Maven would need the parent of the artifact too, which some mirrors lack.
    archive = entry / "archive.tar.gz"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(REGISTRY_URL, timeout=60) as response, archive.open("wb") as file:
                shutil.copyfileobj(response, file)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS:
                sys.exit(f"cannot download {REGISTRY_URL}: {error}")
            time.sleep(PAUSE_S * attempt)
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != REGISTRY_SHA256:
        sys.exit(f"{REGISTRY_URL} has the SHA-256 {found}, but {REGISTRY_SHA256} was expected")
    with tarfile.open(archive) as files:
        files.extractall(entry, filter="data")
    archive.unlink()
    (entry / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar").rename(entry / "registry.jar")


def write_azurite(entry: Path) -> None:
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", entry, AZURITE], attempts=ATTEMPTS)


DOWNLOADS = {
    "kafka": Download("mvn", POM.read_bytes(), write_kafka),
    "registry": Download("java", f"{REGISTRY_URL} {REGISTRY_SHA256}".encode(), write_registry),
    "azurite": Download("npm", AZURITE.encode(), write_azurite),
}


def is_available(name: str) -> bool:
    """Whether a download is in the cache, or can be downloaded."""
    download = DOWNLOADS[name]
    return bool(Cache("downloads").find(name, digest(download.source)) or shutil.which(download.program))


def provide(name: str) -> Path:
    """Downloads a program unless the cache contains it, and returns the path of its link. Ends the program on failure."""
    download, cache, link = DOWNLOADS[name], Cache("downloads"), LINKS / name

    def write(entry: Path) -> None:
        if not shutil.which(download.program):
            sys.exit(f"{download.program} is missing, which is needed for {name}")
        print(f"downloading {name}", flush=True)
        download.write(entry)

    replace_link(link, cache.provide(name, digest(download.source), write))
    cache.remove_unused()
    return link


def main() -> None:
    if len(sys.argv) < 2 or not set(sys.argv[1:]) <= set(DOWNLOADS):
        sys.exit(__doc__.split("\n\n")[1])
    for name in sys.argv[1:]:
        provide(name)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
