"""Builds the programs of a Kubernetes cluster from the Go modules in `modules`, in target/cluster-tools.

Usage: tools.py [--check] [FAMILY...], where a family is base (the default), keda, prometheus or crds.

`--check` builds nothing, and prints what is missing for the build and for a cluster of real nodes.
A program is built again only if its module or its command in this file has changed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness.programs import missing_in_system

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
TARGET = Path(os.environ.get("FEEDLINE_CLUSTER_TOOLS") or HERE.parents[1] / "target/cluster-tools")

# Static, because KEDA runs in an image without libraries. GOTOOLCHAIN: Go must not download another version of itself.
ENVIRONMENT = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
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
    package: str
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
        Program("coredns", "coredns", "github.com/coredns/coredns", "github.com/coredns/coredns"),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=["base"], choices=FAMILIES, metavar="FAMILY")
    parser.add_argument("--check", action="store_true", help="print what is missing, and build nothing")
    arguments = parser.parse_args()
    families = list(dict.fromkeys(arguments.families))
    checks = [missing_requirement(families), missing_in_system(nodes=1) if arguments.check else None]
    if missing := [sentence for sentence in checks if sentence]:
        outcome = "fail" if os.environ.get("CI") else "are skipped"
        for sentence in missing:
            print(f"the tests on a cluster {outcome}: {sentence}", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 0)
    if arguments.check:
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    for program in [program for family in families for program in FAMILIES[family]]:
        build(program)
    if "base" in families:
        write_stages()
        build_pause()
    if "crds" in families:
        collect_crds()


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


def build(program: Program) -> None:
    module, output = MODULES / program.module, TARGET / program.name
    stamp = Stamp(program.name, module, repr(program))
    if stamp.is_current(output):
        return
    print(f"building {program.name}", end=" ", flush=True)
    start, partial = time.monotonic(), output.with_name(f".{program.name}.partial")
    flags = ["-trimpath", f"-tags={program.tags}", "-ldflags", linker_flags(program)]
    go("build", *flags, "-o", str(partial), program.package, directory=module)
    partial.replace(output)
    stamp.write()
    print(f"({time.monotonic() - start:.0f} s)")


def linker_flags(program: Program) -> str:
    flags = "-s -w"
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


def write_stages() -> None:
    """Writes the stages of kwok, without which it changes no object."""
    output, stamp = TARGET / "kwok-stages.yaml", Stamp("kwok-stages", MODULES / "kwok", repr(STAGES))
    if stamp.is_current(output):
        return
    source = Path(go("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", directory=MODULES / "kwok").strip())

    def kubectl(stage: str) -> str:
        return run([str(TARGET / "kubectl"), "kustomize", str(source / "kustomize/stage" / stage)])

    output.write_text("---\n".join(kubectl(stage) for stage in STAGES))
    stamp.write()


def build_pause() -> None:
    source, output = HERE / "harness/pause.c", TARGET / "pause"
    stamp = Stamp("pause", MODULES, source.read_text())
    if not stamp.is_current(output):
        run(["gcc", "-static", "-Os", "-o", str(output), str(source)])
        stamp.write()


def collect_crds() -> None:
    """Downloads the modules of `modules/crds`, and copies their CRDs to target/cluster-tools/crds."""
    output, stamp = TARGET / "crds", Stamp("crds", MODULES / "crds", repr(CRDS) + (MODULES / "flux/go.sum").read_text())
    if stamp.is_current(output):
        return
    print("collecting CRDs")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    downloads = go("mod", "download", "-json", *CRDS, directory=MODULES / "crds")
    for download in json_values(downloads):
        files = sorted(Path(download["Dir"]).glob(CRDS[download["Path"]]))
        assert files, f"{download['Dir']} contains no {CRDS[download['Path']]}"
        for file in files:
            (output / file.name).write_text(file.read_text())
    generator = [str(TARGET / "controller-gen"), "crd", f"paths={HELM_RELEASE}", f"output:crd:dir={output}"]
    run(generator, MODULES / "flux")
    stamp.write()


def json_values(text: str) -> list[dict]:
    """Parses JSON values that follow each other."""
    values, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


class Stamp:
    """Records from what an output was built."""

    def __init__(self, name: str, module: Path, command: str) -> None:
        self.path = TARGET / ".stamps" / name
        files = [path.read_bytes() for path in [module / "go.mod", module / "go.sum"] if path.exists()]
        self.digest = hashlib.sha256(b"\0".join([*files, command.encode()])).hexdigest()

    def is_current(self, output: Path) -> bool:
        return output.exists() and self.path.exists() and self.path.read_text() == self.digest

    def write(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(self.digest)


def go(*arguments: str, directory: Path | None = None) -> str:
    return run(["go", *arguments], directory)


def run(command: list[str], directory: Path | None = None) -> str:
    result = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"`{' '.join(command)}` failed in {directory or Path.cwd()}:\n{result.stderr[-4000:]}")
    return result.stdout


if __name__ == "__main__":
    main()
