"""The root file system of an image, from Debian packages that are unpacked but not configured.

`mmdebstrap` resolves, verifies and unpacks the packages. It runs no maintainer script, so `configure` writes the few
files that the scripts would write and that the image needs.
"""

import io
import lzma
import subprocess
import tarfile
import zlib
from pathlib import PurePosixPath

from archive import Entry, directory, link, regular_file

USER = 65532

# Paths that the image omits: devices, copies of the host's settings, the state of apt, and documents except licences.
OMITTED = (
    "boot",
    "dev",
    "etc/apt",
    "etc/fstab",
    "etc/hostname",
    "etc/resolv.conf",
    "home",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "usr/games",
    "usr/share/bug",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/pixmaps",
    "usr/share/zoneinfo/posix",
    "usr/share/zoneinfo/right",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/log",
)
# Directories that the image omits wherever they are: converters of iconv, and tests and help texts of Python packages.
OMITTED_NAMES = {"gconv", "pydoc_data", "tests"}

ARCHIVES = "var/cache/apt/archives/"
CERTIFICATES = "usr/share/ca-certificates/"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"

Root = dict[str, Entry]
# Field of a Debian control file -> value.
Package = dict[str, str]


def unpack(packages: list[str], suite: str, architecture: str, mirrors: list[str]) -> bytes:
    """Returns a tar archive with the packages, their dependencies, and the packages' files in apt's cache."""
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",
        "--format=tar",
        '--aptopt=Acquire::Retries "5"',
        f"--architectures={architecture}",
        f"--include={','.join(packages)}",
        "--skip=cleanup/apt/cache",
        suite,
        "-",
        *mirrors,
    ]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def read_root(archive: bytes) -> tuple[Root, list[Package]]:
    """Returns the files that the image keeps, and the control fields of all packages, sorted by name."""
    entries: Root = {}
    packages: list[Package] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = str(PurePosixPath(member.name))
            if path.startswith(ARCHIVES) and path.endswith(".deb"):
                packages.append(read_control(tar.extractfile(member).read()))
            if path == "." or not is_kept(path):
                continue
            if member.isdir():
                entries[path] = directory(member.mode)
            elif member.issym():
                entries[path] = link(member.linkname)
            elif member.isfile() or member.islnk():
                entries[path] = regular_file(tar.extractfile(member).read(), member.mode)
            else:
                raise ValueError(f"{path}: the image can contain only files, directories and symbolic links")
    return entries, sorted(packages, key=lambda package: package["Package"])


def is_kept(path: str) -> bool:
    """Whether the image contains a path of the root."""
    if path.startswith("usr/share/doc/") and path.count("/") > 3:
        return path.endswith("/copyright")
    if OMITTED_NAMES.intersection(path.split("/")):
        return False
    return not any(path == omitted or path.startswith(f"{omitted}/") for omitted in OMITTED)


def read_control(deb: bytes) -> Package:
    """Returns the fields of the control file in a Debian package."""
    for name, content in _members_of_ar(deb):
        if name.startswith("control.tar"):
            with tarfile.open(fileobj=io.BytesIO(_decompress(name, content))) as tar:
                return parse_control(tar.extractfile("./control").read().decode())
    raise ValueError("the package has no control.tar: expected the format of deb(5)")


def parse_control(text: str) -> Package:
    """Parses one paragraph of a control file. Continuation lines keep their indentation."""
    fields: Package = {}
    last = ""
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            fields[last] += f"\n{line}"
        elif line:
            last, _, value = line.partition(":")
            fields[last] = value.strip()
    return fields


def configure(entries: Root, packages: list[Package]) -> None:
    """Adds the files that the packages' maintainer scripts would create, as far as the image needs them."""
    entries["etc/passwd"] = regular_file(
        "root:x:0:0:root:/:/usr/sbin/nologin\n"
        f"feedline:x:{USER}:{USER}:feedline:/nonexistent:/usr/sbin/nologin\n"
    )
    entries["etc/group"] = regular_file(f"root:x:0:\nfeedline:x:{USER}:\n")
    entries["etc/nsswitch.conf"] = regular_file("passwd: files\ngroup: files\nhosts: files dns\n")
    entries["tmp"] = directory(0o1777)
    entries |= {path: directory() for path in ("dev", "proc", "run", "sys")}  # mount points
    entries[BUNDLE] = regular_file(build_bundle(entries))
    entries |= _library_links(entries)
    # Scanners of images without dpkg read one file for each package, in the format of /var/lib/dpkg/status.
    for package in packages:
        text = "".join(f"{name}: {value}\n" for name, value in package.items())
        entries[f"var/lib/dpkg/status.d/{package['Package']}"] = regular_file(text)


def build_bundle(entries: Root) -> bytes:
    """Concatenates the trusted certificates, as `update-ca-certificates` does."""
    paths = sorted(path for path in entries if path.startswith(CERTIFICATES) and path.endswith(".crt"))
    if not paths:
        raise ValueError(f"the root has no certificate in {CERTIFICATES}: add ca-certificates to packages.txt")
    return b"".join(entries[path].data.rstrip(b"\n") + b"\n" for path in paths)


def _library_links(entries: Root) -> Root:
    """Links the BLAS and LAPACK libraries, which `update-alternatives` would select, into the search path."""
    links = {}
    for path in entries:
        folder, _, name = path.rpartition("/")
        parent, _, kind = folder.rpartition("/")
        if kind in ("blas", "lapack") and name in ("libblas.so.3", "liblapack.so.3"):
            links[f"{parent}/{name}"] = link(f"{kind}/{name}")
    return links


def _members_of_ar(archive: bytes) -> list[tuple[str, bytes]]:
    if not archive.startswith(b"!<arch>\n"):
        raise ValueError("the package is not an ar archive")
    members, at = [], 8
    while at + 60 <= len(archive):
        name, size = archive[at : at + 16].decode().strip().rstrip("/"), int(archive[at + 48 : at + 58])
        members.append((name, archive[at + 60 : at + 60 + size]))
        at += 60 + size + size % 2
    return members


def _decompress(name: str, content: bytes) -> bytes:
    if name.endswith(".xz"):
        return lzma.decompress(content)
    if name.endswith(".gz"):
        return zlib.decompress(content, wbits=31)
    if name.endswith(".tar"):
        return content
    raise ValueError(f"cannot decompress {name}: expected .xz, .gz or no compression")
