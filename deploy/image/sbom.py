"""The software bill of materials of an image, in the format SPDX 2.3 (JSON)."""

import hashlib
import json
import re
import tomllib

from crates import Crate
from root import Package

DOCUMENT = "SPDXRef-DOCUMENT"
IMAGE = "SPDXRef-Image"


def read_checksums(lock: str) -> dict[tuple[str, str], str]:
    """Returns the SHA-256 checksums in Cargo.lock by name and version."""
    packages = tomllib.loads(lock)["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in packages if "checksum" in package}


def build_sbom(
    name: str, version: str, created: str, suite: str, debian: list[Package], crates: list[Crate], lock: str
) -> str:
    """Lists the Debian packages and the crates of an image."""
    checksums = read_checksums(lock)
    packages = [
        _package(IMAGE, name, version, "Apache-2.0", None),
        *(_debian_package(package, suite) for package in debian),
        *(_crate_package(crate, checksums) for crate in crates),
    ]
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    relationships = [_relationship(DOCUMENT, "DESCRIBES", IMAGE)]
    relationships += [_relationship(IMAGE, "CONTAINS", package["SPDXID"]) for package in packages[1:]]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": name,
        # The namespace must be unique for each document.
        "documentNamespace": f"https://example.org/feedline/sbom/{version}/{digest}",
        "creationInfo": {"created": created, "creators": ["Tool: feedline-image"]},
        "packages": packages,
        "relationships": relationships,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _debian_package(package: Package, suite: str) -> dict:
    name, version = package["Package"], package["Version"]
    url = f"pkg:deb/debian/{name}@{_encode(version)}?arch={package['Architecture']}&distro={suite}"
    # The file /usr/share/doc/NAME/copyright in the image contains the licences of a Debian package.
    return _package(_identifier("Deb", name, version), name, version, "NOASSERTION", url) | {
        "supplier": f"Organization: {package['Maintainer']}"
    }


def _crate_package(crate: Crate, checksums: dict[tuple[str, str], str]) -> dict:
    url = f"pkg:cargo/{crate.name}@{_encode(crate.version)}"
    identifier = _identifier("Crate", crate.name, crate.version)
    package = _package(identifier, crate.name, crate.version, crate.licence, url)
    if checksum := checksums.get((crate.name, crate.version)):
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
        package["downloadLocation"] = f"https://crates.io/api/v1/crates/{crate.name}/{crate.version}/download"
    return package


def _package(identifier: str, name: str, version: str, licence: str, url: str | None) -> dict:
    package = {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if url:
        package["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}
        ]
    return package


def _relationship(element: str, kind: str, other: str) -> dict:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": other}


def _identifier(*parts: str) -> str:
    return "SPDXRef-" + "-".join(re.sub(r"[^A-Za-z0-9.]", "-", part) for part in parts)


def _encode(version: str) -> str:
    return version.replace("+", "%2B").replace(":", "%3A")
