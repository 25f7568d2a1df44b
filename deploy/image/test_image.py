"""Tests of the image builder. They create their own packages, so they need neither mmdebstrap nor a network."""

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
import tomllib

import pytest

import build
from archive import build_image, build_layer, directory, link, regular_file
from crates import crates_in_binary, licence_texts
from packages import SUITE, VARIANTS, read_packages
from root import ARCHIVES, BUNDLE, configure, is_kept, parse_control, read_root
from sbom import build_sbom

CONTROL = "Package: tiny\nVersion: 1:2.0+b1\nArchitecture: amd64\nMaintainer: A <a@b.example>\nDescription: one\n two\n"
DOCKERFILE = (build.REPOSITORY / "deploy/Dockerfile").read_text()


def tar_of(files: dict[str, bytes], **fields) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755 if path.startswith("./usr/bin/") else 0o644
            for name, value in fields.items():
                setattr(member, name, value)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def deb() -> bytes:
    archive = b"!<arch>\n"
    for name, data in [("debian-binary", b"2.0\n"), ("control.tar", tar_of({"./control": CONTROL.encode()}))]:
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        archive += data + b"\n" * (len(data) % 2)
    return archive


def debian_root(**fields) -> bytes:
    files = {
        "./usr/bin/tool": b"program",
        "./usr/share/ca-certificates/mozilla/B.crt": b"second",
        "./usr/share/ca-certificates/mozilla/A.crt": b"first\n",
        "./usr/share/doc/tiny/copyright": b"licence",
        "./usr/share/doc/tiny/changelog.gz": b"history",
        "./usr/lib/x/blas/libblas.so.3": b"library",
        "./etc/resolv.conf": b"nameserver 10.0.0.1",
        f"./{ARCHIVES}tiny_2.0_amd64.deb": deb(),
    }
    return tar_of(files, **fields)


def cargo_metadata(tmp_path) -> dict:
    """Returns the metadata of a binary that needs `used` and `generator`. `tested` is a dependency of its tests."""
    kinds = {"used": None, "generator": "build", "tested": "dev"}
    packages = [{"name": "feedline-node", "license": "Apache-2.0", "source": None}]
    packages += [{"name": name, "license": "MIT/Apache-2.0", "source": "registry"} for name in kinds]
    for package in packages:
        folder = tmp_path / package["name"]
        folder.mkdir()
        (folder / "LICENSE-MIT").write_text("the terms\n")
        (folder / "license.rs").write_text("a source file")
        package |= {"id": package["name"], "version": "1.0.0+v2", "manifest_path": str(folder / "Cargo.toml")}
    edges = [{"pkg": name, "dep_kinds": [{"kind": kind}]} for name, kind in kinds.items()]
    nodes = [{"id": "feedline-node", "deps": edges}] + [{"id": name, "deps": []} for name in kinds]
    return {"packages": packages, "resolve": {"nodes": nodes}}


def test_the_dockerfile_and_the_builder_install_one_list():
    assert "COPY deploy/image/packages.txt /packages.txt" in DOCKERFILE
    installed = [line for line in DOCKERFILE.splitlines() if "apt-get install" in line]
    assert installed[1:] == ["        | xargs apt-get install -y --no-install-recommends \\"]
    # The filter of the Dockerfile selects the same packages.
    program = re.search(r"awk -v variant=\"\$VARIANT\" '(.*)'", DOCKERFILE).group(1)
    assert program == '$2 == "" || $2 == variant {print $1}'
    assert read_packages("default", "# none\nb\na # why\nc python\n") == ["a", "b"]
    assert read_packages("python", "b\na\nc python\n") == ["a", "b", "c"]
    assert {"ca-certificates", "libc6", "tzdata"} < set(read_packages("default")) < set(read_packages("python"))


def test_the_dockerfile_has_the_settings_of_the_builder():
    settings = build.image_settings("1.0")
    assert f"USER {settings['User']}\n" in DOCKERFILE
    assert f"ENTRYPOINT {json.dumps(settings['Entrypoint'])}\n" in DOCKERFILE
    assert f"ENV {settings['Env'][0]}\n" in DOCKERFILE
    ports = " ".join(port.removesuffix("/tcp") for port in settings["ExposedPorts"])
    assert f"EXPOSE {ports}\n" in DOCKERFILE
    assert f"FROM debian:{SUITE}-slim\n" in DOCKERFILE
    rust = tomllib.loads((build.REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert f"FROM rust:{rust}-{SUITE} AS build\n" in DOCKERFILE


def test_an_invalid_package_list_is_rejected_with_its_line():
    with pytest.raises(ValueError, match="packages.txt:2: expected a package and .* found `a pyton`"):
        read_packages("python", "b\na pyton\n")
    with pytest.raises(ValueError, match="unknown variant `slim`: expected default or python"):
        read_packages("slim", "")


def test_a_layer_depends_only_on_its_content():
    entries = {"b/c": regular_file("x", 0o600), "a": link("b/c"), "b-d": directory(0o1777)}
    layer = build_layer(dict(entries))
    assert layer.digest == build_layer(dict(reversed(entries.items()))).digest
    with tarfile.open(fileobj=io.BytesIO(layer.data)) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["a", "b", "b/c", "b-d"]
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "", 0)}
    assert [member.mode for member in members] == [0o777, 0o755, 0o600, 0o1777]


def test_an_archive_is_an_oci_layout_and_a_docker_archive():
    layers = [("one", build_layer({"a": regular_file("1")})), ("two", build_layer({"b": regular_file("2")}))]
    name = "docker.io/library/feedline:1.0"
    archive = build_image(name, layers, build.image_settings("1.0"), "arm64", "1970-01-01T00:00:00Z")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    read = lambda descriptor: blobs["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads(blobs["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == name
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "1.0"
    manifest = json.loads(read(entry))
    config = json.loads(read(manifest["config"]))
    assert config["config"]["User"] == "65532:65532"
    assert config["architecture"] == entry["platform"]["architecture"] == "arm64"
    unpacked = [gzip.decompress(read(layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in unpacked]
    assert all(len(read(item)) == item["size"] for item in [entry, manifest["config"], *manifest["layers"]])
    [docker] = json.loads(blobs["manifest.json"])
    assert docker["RepoTags"] == [name]
    assert blobs[docker["Config"]] == read(manifest["config"])
    assert [blobs[path] for path in docker["Layers"]] == [layer.data for _, layer in layers]


def test_the_root_keeps_programs_and_licences_and_omits_the_state_of_the_host():
    entries, packages = read_root(debian_root())
    assert sorted(entries) == [
        "usr/bin/tool",
        "usr/lib/x/blas/libblas.so.3",
        "usr/share/ca-certificates/mozilla/A.crt",
        "usr/share/ca-certificates/mozilla/B.crt",
        "usr/share/doc/tiny/copyright",
    ]
    assert entries["usr/bin/tool"].mode == 0o755
    assert packages == [parse_control(CONTROL)]
    assert packages[0]["Description"] == "one\n two"
    assert read_root(debian_root(uid=7, mtime=9)) == (entries, packages)
    assert is_kept("usr/share/doc/tiny") and not is_kept("usr/lib/python3/dist-packages/numpy/tests/a.py")


def test_the_root_is_configured_as_the_maintainer_scripts_would():
    entries, packages = read_root(debian_root())
    configure(entries, packages)
    assert entries[BUNDLE].data == b"first\nsecond\n"
    assert entries["usr/lib/x/libblas.so.3"] == link("blas/libblas.so.3")
    assert entries["tmp"] == directory(0o1777)
    assert b":65532:65532:" in entries["etc/passwd"].data
    assert entries["var/lib/dpkg/status.d/tiny"].data.decode() == CONTROL
    with pytest.raises(ValueError, match="add ca-certificates to packages.txt"):
        configure({}, [])


def test_licences_cover_the_crates_in_the_binary(tmp_path):
    crates = crates_in_binary(cargo_metadata(tmp_path))
    assert [(crate.name, crate.licence) for crate in crates] == [
        ("feedline-node", "Apache-2.0"),
        ("generator", "MIT OR Apache-2.0"),
        ("used", "MIT OR Apache-2.0"),
    ]
    texts = licence_texts(crates)
    assert texts.count("the terms") == 1 and "a source file" not in texts
    assert "generator 1.0.0+v2: LICENSE-MIT\nused 1.0.0+v2: LICENSE-MIT\n" in texts
    with pytest.raises(ValueError, match="does not contain the package feedline-node"):
        crates_in_binary({"packages": [], "resolve": {"nodes": []}})


def test_the_bill_of_materials_lists_debian_packages_and_crates(tmp_path):
    lock = '[[package]]\nname = "used"\nversion = "1.0.0+v2"\nchecksum = "abc"\n'
    crates = crates_in_binary(cargo_metadata(tmp_path))
    text = build_sbom("feedline", "1.0", "1970-01-01T00:00:00Z", SUITE, [parse_control(CONTROL)], crates, lock)
    document = json.loads(text)
    packages = {package["name"]: package for package in document["packages"]}
    assert list(packages) == ["feedline", "tiny", "feedline-node", "generator", "used"]
    locators = [package["externalRefs"][0]["referenceLocator"] for package in document["packages"][1:]]
    assert locators[0] == f"pkg:deb/debian/tiny@1%3A2.0%2Bb1?arch=amd64&distro={SUITE}"
    assert locators[3] == "pkg:cargo/used@1.0.0%2Bv2"
    assert packages["used"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": "abc"}]
    identifiers = [package["SPDXID"] for package in document["packages"]]
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier) for identifier in identifiers)
    related = [item["relatedSpdxElement"] for item in document["relationships"]]
    assert related == identifiers


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_builds_have_the_same_bytes(tmp_path, monkeypatch, variant):
    shutil.copy("/bin/true", tmp_path / "feedline")
    metadata = cargo_metadata(tmp_path)
    binary = tmp_path / "feedline"
    args = argparse.Namespace(binary=binary, variant=variant, architecture="amd64", mirror=[])
    builds = []
    for owner in (0, 1000):
        monkeypatch.setattr(build, "unpack", lambda *_, owner=owner: debian_root(uid=owner, mtime=owner))
        builds.append(build.build(args, metadata))
    assert builds[0] == builds[1]
    assert re.fullmatch(rf"docker\.io/library/feedline:\d+\.\d+\.\d+{VARIANTS[variant]}", builds[0][0])
    assert json.loads(builds[0][2])["creationInfo"]["created"] == "1970-01-01T00:00:00Z"


def test_a_file_that_is_not_a_program_is_rejected(tmp_path):
    (tmp_path / "feedline").write_bytes(b"text")
    with pytest.raises(SystemExit, match="feedline is not a program for Linux: "):
        build.without_symbols(tmp_path / "feedline")


def test_an_interrupted_build_leaves_the_previous_archive(tmp_path):
    build.write(tmp_path, "feedline-1.0", b"old", "old")
    assert build.write(tmp_path, "feedline-1.0", b"new", "new").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["feedline-1.0.spdx.json", "feedline-1.0.tar"]
