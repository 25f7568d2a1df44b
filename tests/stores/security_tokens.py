"""Servers like STS: one for web identity tokens, as EKS uses it (IRSA), and one before moto whose keys expire soon."""

import contextlib
import datetime
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from servers import Handler, running

ROLE = "arn:aws:iam::123456789012:role/reader"
RESPONSE = """<{Action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{Action}Result>
<Credentials><SessionToken>{Token}</SessionToken><SecretAccessKey>{SecretAccessKey}</SecretAccessKey><Expiration>{Expiration}</Expiration>
<AccessKeyId>{AccessKeyId}</AccessKeyId></Credentials></{Action}Result></{Action}Response>"""
ERROR = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code>
<Message>The token is not valid</Message></Error></ErrorResponse>"""


def certificate(folder: Path) -> tuple[Path, Path]:
    """Writes a certificate for the loopback address, which signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sts")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    signed = builder.sign(key, hashes.SHA256())
    paths = folder / "sts.pem", folder / "sts.key"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(*encoding))
    return paths


def arguments(path: str) -> dict:
    return {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}


class SecurityTokenService(Handler):
    def do_POST(self) -> None:
        query = arguments(self.path)
        expected = {"Action": "AssumeRoleWithWebIdentity", "RoleArn": self.server.role, "WebIdentityToken": self.server.token()}
        is_allowed = all(query.get(name) == value for name, value in expected.items())
        self.server.tokens.append(query.get("WebIdentityToken"))
        self.answer(200 if is_allowed else 400, RESPONSE.format(**query, **self.server.keys()) if is_allowed else ERROR)


@contextlib.contextmanager
def serve_sts(folder: Path, role: str, token: Callable[[], str], keys: Callable[[], dict]) -> Iterator[ThreadingHTTPServer]:
    """Runs the service with TLS. It accepts only the current value of `token()`. `tokens` has those of the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SecurityTokenService)
    server.role, server.token, server.keys, server.tokens = role, token, keys, []
    server.certificate, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server, "https"):
        yield server


def sts_options(sts: ThreadingHTTPServer) -> dict:
    return {"AWS_ENDPOINT_URL_STS": sts.url, "SSL_CERT_FILE": str(sts.certificate)}


class AssumeRole(Handler):
    def do_GET(self) -> None:
        query = arguments(self.path)
        self.server.requests.append(query)
        request = urllib.request.Request(self.server.moto + self.path, headers=dict(self.headers))
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            return self.answer(error.code, error.read())
        self.answer(200, RESPONSE.format(**query, **self.server.keys()))


@contextlib.contextmanager
def serve_assume_role(moto: str, keys: Callable[[], dict]) -> Iterator[ThreadingHTTPServer]:
    """Runs a service that returns `keys()` if moto allows the request. `requests` has the arguments of the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), AssumeRole)
    server.moto, server.keys, server.requests = moto, keys, []
    with running(server):
        yield server
