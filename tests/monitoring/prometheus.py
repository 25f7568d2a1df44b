"""Runs a Prometheus that scrapes real roles every second, and queries it."""

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from roles import free_port

T = TypeVar("T")
# Prometheus and the roles share the cores of the machine with other tests.
DEADLINE_S = 300


# `make cluster-tools WITH=prometheus` builds a newer release than that of Debian.
BUILT = Path(__file__).parents[2] / "target/cluster-tools/prometheus"
MISSING = "Prometheus is missing: run `make setup NEEDED=prometheus`, or set PROMETHEUS"


def find_prometheuses() -> list[str]:
    """Returns the programs in PROMETHEUS, separated by colons, or the installed one and the one that was built."""
    if named := [path for path in os.environ.get("PROMETHEUS", "").split(":") if path]:
        return named
    return [path for path in [shutil.which("prometheus"), shutil.which(str(BUILT))] if path]


def missing_prometheus() -> str | None:
    """Returns one sentence about a missing Prometheus, or None."""
    if absent := [path for path in find_prometheuses() if not shutil.which(path)]:
        return f"PROMETHEUS names {absent[0]}, which is not a program: name the programs, separated by colons"
    return None if find_prometheuses() else MISSING


def wait_for(what: str, attempt: Callable[[], T | None]) -> T:
    """Repeats an attempt until it returns something."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if result := attempt():
            return result
        time.sleep(0.2)
    raise AssertionError(f"no {what} within {DEADLINE_S} s")


class Prometheus:
    """A running Prometheus. `groups` are the groups of its rules, and `keys` the keys for roles with TLS."""

    def __init__(self, folder: Path, groups: list[dict], keys: Path, program: str):
        self.folder = folder
        self.targets: dict[str, list[dict]] = {"http": [], "https": []}
        self.write_targets()
        (folder / "rules.json").write_text(json.dumps({"groups": groups}))
        (folder / "prometheus.json").write_text(json.dumps(self.settings(keys)))
        self.address = f"127.0.0.1:{free_port()}"
        flags = [f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data"]
        self.log = (folder / "log").open("w")
        command = [program, *flags, f"--web.listen-address={self.address}"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        wait_for("Prometheus that is ready", self.is_ready)

    def settings(self, keys: Path) -> dict:
        # YAML contains JSON.
        tls = {name: str(keys / file) for name, file in TLS_FILES.items()}
        return {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / "rules.json")],
            "scrape_configs": [
                {"job_name": "http", "file_sd_configs": [{"files": [str(self.folder / "http.json")]}]},
                {
                    "job_name": "https",
                    "scheme": "https",
                    "tls_config": {**tls, "server_name": "localhost"},
                    "file_sd_configs": [{"files": [str(self.folder / "https.json")]}],
                },
            ],
        }

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def add(self, address: str, release: str, pod: str, scheme: str = "http") -> None:
        """Scrapes a role, with the labels that the chart's monitors set."""
        labels = {"namespace": "test", "release": release, "pod": pod}
        self.targets[scheme].append({"targets": [address], "labels": labels})
        self.write_targets()

    def write_targets(self) -> None:
        for scheme, targets in self.targets.items():
            path = self.folder / f"{scheme}.json"
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(targets))
            partial.replace(path)

    def query(self, expression: str) -> list[dict]:
        """Returns the series of an instant query."""
        return self.get("query", query=expression)["result"]

    def get(self, path: str, **parameters: object) -> dict | list:
        """Returns the data of a request to the API."""
        text = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{text}", timeout=10) as response:
            return json.load(response)["data"]

    def firing(self, release: str, seconds: int = 0) -> set[str]:
        """Returns the names of the alerts of a release that fire, or that fired for this number of seconds."""
        alerts = f'ALERTS{{alertstate="firing", release="{release}"}}'
        series = self.query(f"count_over_time({alerts}[10m]) >= {seconds}" if seconds else alerts)
        return {item["metric"]["alertname"] for item in series}

    def wait_for_alert(self, alert: str, release: str) -> None:
        wait_for(f"alert {alert} of {release}", lambda: alert in self.firing(release))

    def wait_for_value(self, expression: str) -> float:
        """Waits until a query returns a value, and returns the first."""
        return float(wait_for(expression, lambda: self.query(expression))[0]["value"][1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=200)
        self.log.close()


TLS_FILES = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client-key.pem"}
