"""Creates an authority and the certificates of brokers and clients, with openssl."""

import subprocess
from pathlib import Path

KEY_PASSWORD = "key-password-5"


class Certificates:
    """Files in PEM form: the authority, the store of the brokers, and the certificates and keys of clients."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.authority = folder / "authority.pem"
        self._openssl("req", "-x509", *self._new_key("authority"), "-out", self.authority, "-days", "2", "-subj", "/CN=authority")
        server = self._issue("server", "subjectAltName=IP:127.0.0.1")
        self.server_store = folder / "store.pem"
        self.server_store.write_text((folder / "server.key").read_text() + server.read_text() + self.authority.read_text())
        self.client = self._issue("client", "extendedKeyUsage=clientAuth")
        self.client_key = folder / "client.key"
        self.encrypted_client_key = folder / "encrypted-client.key"
        encryption = ("-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{KEY_PASSWORD}")
        self._openssl("pkcs8", *encryption, "-in", self.client_key, "-out", self.encrypted_client_key)
        # A certificate that no broker accepts.
        self.stranger_authority = folder / "stranger-authority.pem"
        self.stranger = folder / "stranger.pem"
        self.stranger_key = folder / "stranger.key"
        self._openssl("req", "-x509", *self._new_key("stranger"), "-out", self.stranger, "-days", "2", "-subj", "/CN=stranger")

    def _new_key(self, name: str) -> list[object]:
        return ["-newkey", "rsa:2048", "-nodes", "-keyout", self.folder / f"{name}.key"]

    def _issue(self, name: str, extension: str) -> Path:
        request, certificate, extensions = (self.folder / f"{name}.{end}" for end in ("csr", "pem", "ext"))
        extensions.write_text(extension + "\n")
        self._openssl("req", *self._new_key(name), "-out", request, "-subj", f"/CN={name}")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", self.folder / "authority.key", "-CAcreateserial",
            "-out", certificate, "-days", "2", "-extfile", extensions,
        )
        return certificate

    @staticmethod
    def _openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
