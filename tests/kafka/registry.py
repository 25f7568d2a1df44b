"""Starts Apicurio Registry on this machine, from its archive on Maven Central, with its REST API of Confluent."""

import hashlib
import json
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from brokers import ROOT, free_ports

VERSION = "3.0.9"
URL = f"https://repo.maven.apache.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
FOLDER = ROOT / "target/kafka/registry"
START_TIMEOUT_S = 60


def download() -> Path:
    """Downloads the registry once. Returns its jar."""
    jar = FOLDER / VERSION / f"apicurio-registry-app-{VERSION}-runner.jar"
    if not jar.is_file():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        # Maven would need the parent of the artifact too, which some mirrors lack.
        archive = FOLDER / "archive.tar.gz"
        urllib.request.urlretrieve(URL, archive)
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise ValueError(f"{URL} has the SHA-256 {digest}, but {SHA256} was expected")
        with tarfile.open(archive) as files:
            files.extractall(FOLDER / VERSION, filter="data")
        archive.unlink()
    return jar


class Registry:
    """A registry whose schemas are in memory."""

    def __init__(self, log: Path) -> None:
        jar = download()
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        java = ["java", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={self.port}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen([*java, "-jar", str(jar)], stdout=output, stderr=output)
        self.log = log

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                self.request("/subjects")
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        raise TimeoutError(f"the registry did not start: {self.log.read_text()[-2000:]}")

    def request(self, path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/vnd.schemaregistry.v1+json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as response:
            return json.load(response)

    def register(self, subject: str, schema: str, language: str = "AVRO") -> int:
        """Adds a version of a subject. Returns the id of the schema."""
        return self.request(f"/subjects/{subject}/versions", {"schema": schema, "schemaType": language})["id"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
