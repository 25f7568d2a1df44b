"""Missing tools are reported before a build, and links lead to the programs in the cache."""

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tools
from harness.control_plane import COREFILE
from preparation.cache import COMPLETE

TOOLS = Path(__file__).with_name("tools.py")


@pytest.mark.parametrize(("variable", "status", "outcome"), [("", 0, "are skipped"), ("true", 1, "fail")])
def test_a_missing_go_fails_only_in_continuous_integration(tmp_path, variable, status, outcome):
    command = [sys.executable, "-B", TOOLS, "--check", "base", "crds"]
    variables = {"PATH": str(tmp_path), "CI": variable, "FEEDLINE_CLUSTER_TOOLS": str(tmp_path / "tools")}
    variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert result.returncode == status, result
    assert f"the tests on a cluster {outcome}: Go is missing: install Go 1." in result.stderr
    assert not (tmp_path / "tools").exists(), "a check builds nothing"


def test_a_build_of_the_cache_needs_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tools, "TARGET", tmp_path / "tools")
    monkeypatch.setattr(sys, "argv", ["tools.py", "crds"])
    for artifact in tools.artifacts_of("crds"):
        write = lambda folder, name=artifact.name: (folder / name).write_text(name)  # noqa: E731
        tools.Cache("cluster-tools").provide(artifact.name, artifact.digest, write)
    monkeypatch.setenv("PATH", str(tmp_path))
    tools.main()
    assert sorted(path.name for path in (tmp_path / "tools").iterdir()) == ["crds", "flux"]


def test_links_follow_the_newest_entry(tmp_path):
    target = tmp_path / "target"
    for version, crds in {"1": ["a", "b"], "2": ["b", "c"]}.items():
        entry = tmp_path / version
        (entry / "crds").mkdir(parents=True)
        (entry / COMPLETE).touch()
        (entry / "program").write_text(version)
        for name in crds:
            (entry / "crds" / name).write_text(version)
        tools.link(entry, target)
        tools.link(entry, target)
        files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
        assert files == {"program": version} | {f"crds/{name}": version for name in crds}


def test_links_work_between_file_systems(tmp_path, monkeypatch):
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry/program").write_text("program")

    def hardlink_to(path: Path, source: Path) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", hardlink_to)
    for _ in range(2):
        tools.link(tmp_path / "entry", tmp_path / "target")
    assert (tmp_path / "target/program").is_symlink()
    assert (tmp_path / "target/program").read_text() == "program"


@pytest.mark.parametrize("changed", ["go.mod", "go.sum", "main.go"])
def test_a_changed_source_is_built_again(tmp_path, monkeypatch, changed):
    monkeypatch.setattr(tools, "MODULES", tmp_path)
    (tmp_path / "etcd").mkdir()
    for name in ["go.mod", "go.sum", "main.go"]:
        (tmp_path / "etcd" / name).write_text("first")
    before = tools.programs_of("etcd", "base")
    (tmp_path / "etcd" / changed).write_text("second")
    assert tools.programs_of("etcd", "base").digest != before.digest


def test_programs_of_a_module_are_built_at_once(tmp_path, monkeypatch):
    commands = []

    def go(*arguments: object, directory: Path) -> str:
        if arguments[0] == "build":
            commands.append([str(argument) for argument in arguments])
            for package in arguments[-2:]:
                (tmp_path / Path(package).name).write_text(package)
        return "v2.0.0"

    monkeypatch.setattr(tools, "go", go)
    tools.programs_of("keda", "keda").write(tmp_path)
    assert [command[-4:] for command in commands] == [
        ["-o", f"{tmp_path}/", f"{tools.KEDA}/cmd/operator", f"{tools.KEDA}/cmd/adapter"]
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"keda-operator", "keda-adapter"}


@pytest.mark.parametrize(("version", "is_taken"), [("v4.3.1", True), ("v4.3.0", False), ("", False)])
def test_helm_of_the_wheel_is_taken_if_it_has_the_version_of_the_module(tmp_path, monkeypatch, version, is_taken):
    content = f"#!/bin/sh\necho -n {version}\n" if version else "a program for another machine"

    def download(command: list[str], **options: object) -> subprocess.CompletedProcess:
        if "download" not in command:
            return run(command, **options)
        assert command[-1] == tools.requirement()
        write_wheel(Path(command[command.index("--dest") + 1]) / "layer.whl", content)
        return subprocess.CompletedProcess(command, 0)

    run = subprocess.run
    monkeypatch.setattr(tools.subprocess, "run", download)
    monkeypatch.setattr(tools, "go", lambda *arguments, directory: "v4.3.1\n")
    assert tools.download_helm(tmp_path / "helm4") == is_taken
    assert (tmp_path / "helm4").exists() == is_taken


def write_wheel(path: Path, helm: str) -> None:
    """Writes a wheel with an archive with a layer with Helm."""
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("helm/helm", helm)
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer.getvalue())
        archive.addfile(member, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("layer/_jsii/layer.jsii.tgz", package.getvalue())


def test_coredns_has_the_plugins_of_the_corefile():
    plugins = re.findall(r"coredns/plugin/(\w+)", (tools.MODULES / "coredns/main.go").read_text())
    assert plugins == sorted(re.findall(r"^    (\w+)", COREFILE, re.M))
