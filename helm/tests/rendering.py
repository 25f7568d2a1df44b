"""Renders the chart with Helm, and finds objects in the result."""

import importlib.metadata
import os
import shutil
import subprocess

from helm_wheel import LAYER, extract_helm
from readme import CHART

CACHE = CHART.parents[1] / "target/chart-tools/helm"


def find_helm() -> str | None:
    """Returns the program in HELM, in PATH or in the installed wheel, in this order."""
    if program := os.environ.get("HELM") or shutil.which("helm"):
        return program
    if not CACHE.exists():
        try:
            files = importlib.metadata.files(LAYER) or []
        except importlib.metadata.PackageNotFoundError:
            return None
        [archive] = [file for file in files if file.name.endswith(".jsii.tgz")]
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        partial = CACHE.with_name(f"helm-{os.getpid()}")
        with open(archive.locate(), "rb") as file:
            partial.write_bytes(extract_helm(file))
        partial.chmod(0o755)
        partial.replace(CACHE)
    return str(CACHE)


def run_helm(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([find_helm(), *arguments], capture_output=True, text=True)


def render(name: str, *arguments: str) -> list[dict]:
    """Renders the chart with `ci/NAME.yaml` as the release `demo` in the namespace `ml`."""
    import yaml  # The other tests of the chart run without it.

    values = str(CHART / "ci" / f"{name}.yaml")
    result = run_helm("template", "demo", str(CHART), "--namespace", "ml", "--values", values, *arguments)
    assert result.returncode == 0, result.stderr
    return [value for value in yaml.safe_load_all(result.stdout) if value]


def render_release() -> str:
    """Renders the plain manifests in `deploy/kubernetes`: the default values as the release `feedline`, without the hooks
    of a rollback, which only Helm can run."""
    result = run_helm("template", "feedline", str(CHART), "--namespace", "feedline", "--skip-tests")
    assert result.returncode == 0, result.stderr
    return "".join(f"---\n{part}" for part in result.stdout.split("---\n")[1:] if "helm.sh/hook: pre-rollback" not in part)


def find(objects: list[dict], kind: str, name: str) -> dict:
    """Returns the object of a kind whose name ends with `name`, after the prefix of the release."""
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == f"demo-feedline{name}"]
    assert len(found) == 1, f"{len(found)} objects {kind} demo-feedline{name}"
    return found[0]


def find_all(objects: list[dict], kind: str) -> list[dict]:
    return [item for item in objects if item["kind"] == kind]


def pod_of(item: dict) -> dict | None:
    """Returns the pod that an object is or creates."""
    spec = item.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    if item["kind"] == "Pod":
        return spec
    return spec.get("template", {}).get("spec")


def args_of(item: dict) -> dict[str, str]:
    """Returns the flags of the first container."""
    flags = [argument for argument in pod_of(item)["containers"][0]["args"] if argument.startswith("--")]
    return {name: value for name, _, value in (flag.partition("=") for flag in flags)}
