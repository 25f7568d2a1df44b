"""Starts Apicurio Registry on this machine, from its archive on Maven Central, with its REST API of Confluent."""

import json
import struct
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from brokers import downloads, free_ports

START_TIMEOUT_S = 60


class Registry:
    """A registry whose schemas are in memory."""

    def __init__(self, log: Path) -> None:
        jar = downloads.provide("registry") / "registry.jar"
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


def avro_schema(*fields):
    return json.dumps({"type": "record", "name": "Event", "fields": list(fields)})


def zigzag(number: int) -> bytes:
    value, encoded = number << 1 ^ number >> 63, b""
    while value > 0x7F:
        encoded, value = encoded + bytes([value & 0x7F | 0x80]), value >> 7
    return encoded + bytes([value])


def framed(schema: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema) + body
