"""Certificates that are valid for seconds, from the authority of `feedline keys new`."""

import subprocess
import time
from pathlib import Path

from harness import Cluster
from harness.commands import run

SETTINGS = """
[ca]
default_ca = own
[own]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = names
unique_subject = no
[names]
commonName = supplied
"""


class Authority:
    """A directory of `feedline keys new`, whose certificates `renew` replaces."""

    def __init__(self, cluster: Cluster, directory: Path, hosts: list[str]) -> None:
        self.directory, self.hosts = directory, hosts
        run([cluster.state / "feedline", "keys", "new", directory, "--host", ",".join(hosts)])
        for name, text in {"openssl.cnf": SETTINGS, "index": "", "serial": "1000\n"}.items():
            (directory / name).write_text(text)

    def renew(self, seconds: int) -> None:
        names = ",".join(f"DNS:{host}" for host in self.hosts)
        self._issue("role", f"subjectAltName = {names}\nextendedKeyUsage = serverAuth, clientAuth\n", seconds)
        self._issue("client", "extendedKeyUsage = clientAuth\n", seconds)

    def files(self) -> dict[str, str]:
        """Returns what the Secret of the chart contains, without the key of the authority."""
        own = [
            "ca.pem",
            "role.pem",
            "role-key.pem",
            "client.pem",
            "client-key.pem",
            "secret",
            "worker.token",
            "client.token",
            "admin.token",
        ]
        return {name: (self.directory / name).read_text() for name in own}

    def _issue(self, name: str, extensions: str, seconds: int) -> None:
        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

        (self.directory / "extensions").write_text(extensions)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}-key.pem"]
        openssl("req", "-new", *new_key, "-subj", f"/CN=feedline {name}", "-out", "request.pem")
        zulu = lambda at: time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at))  # noqa: E731
        # A minute earlier, because clocks differ.
        validity = ["-startdate", zulu(time.time() - 60), "-enddate", zulu(time.time() + seconds)]
        authority = ["-cert", "ca.pem", "-keyfile", "ca-key.pem"]
        openssl(
            "ca",
            "-batch",
            "-notext",
            "-config",
            "openssl.cnf",
            *authority,
            *validity,
            "-extfile",
            "extensions",
            "-in",
            "request.pem",
            "-out",
            f"{name}.pem",
        )
