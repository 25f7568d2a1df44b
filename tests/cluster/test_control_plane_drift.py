"""Tools for GitOps find no difference between what the chart renders and what the cluster has, also after scaling.

Argo CD and Flux render the chart, ask the API server what would change if they applied the result, and repair what
differs.
"""

from collections.abc import Callable

import pytest

from harness import Cluster
from manifests import dump, load
from releases import CHART, Release, template

# Helm waits only for hooks: some pods need nodes and volumes that do not exist.
NO_WAIT = "--wait=hookOnly"
SCALED = 4
# The most elaborate values, workers of the other kind, and objects of cert-manager, KEDA and the prometheus-operator.
FILES = ["defaults", "everything", "stateful-workers", "cert-manager"]
# How a user, Argo CD with the options in deploy/gitops, and Flux compare.
TOOLS = {
    "kubectl": [],
    "argo-cd": ["--server-side", "--force-conflicts", "--field-manager=argocd-controller"],
    "flux": ["--server-side", "--force-conflicts", "--field-manager=helm-controller"],
}


@pytest.mark.parametrize("file", FILES)
def test_an_installed_and_scaled_release_has_no_drift(control_plane: Cluster, crds, new_namespace, file: str):
    release, values = install(control_plane, new_namespace, file)
    scaled = scale(release)
    rendered = rendered_objects(release, values)
    for tool, flags in TOOLS.items():
        differences = lasting_differences(release, rendered, flags)
        assert not differences, f"{tool} finds drift: {differences}"
    assert replicas_of(release) == scaled


@pytest.mark.parametrize("tool", ["argo-cd", "flux"])
def test_repairs_keep_the_number_of_workers_and_the_generated_keys(control_plane: Cluster, new_namespace, tool: str):
    release, values = install(control_plane, new_namespace, "defaults")
    scaled, rendered = scale(release), rendered_objects(release, values)
    keys = ["create", "secret", "generic", "demo-feedline-keys", "--from-literal=secret=x", "-n", release.namespace]
    control_plane.kubectl(*keys)
    secret = release.get("secret/demo-feedline-keys")
    generations = generations_of(release)
    for _ in range(2):
        control_plane.kubectl("apply", *TOOLS[tool], "--filename=-", input=dump(rendered))
        assert generations_of(release) == generations, "an application of the same objects changes nothing"
    assert replicas_of(release) == scaled == {"Deployment/demo-feedline-worker": SCALED}
    assert release.get("secret/demo-feedline-keys") == secret
    # What the tool has not rendered, it neither changes nor deletes.
    assert not [item for item in rendered if item["kind"] in ("Secret", "PersistentVolumeClaim")]


def test_real_drift_is_found(control_plane: Cluster, new_namespace):
    """Proves that the comparison of the other tests can fail."""
    release, values = install(control_plane, new_namespace, "defaults")
    rendered = rendered_objects(release, values)
    image = ["deployment/demo-feedline-worker", "worker=feedline:other"]
    control_plane.kubectl("set", "image", *image, "--namespace", release.namespace)
    for tool, flags in TOOLS.items():
        assert "feedline:other" in diff(release, rendered, flags), tool


def install(cluster: Cluster, new_namespace: Callable[[], str], file: str) -> tuple[Release, dict]:
    """Installs the chart with a file of values, whose namespaces of trainers are replaced by an existing one."""
    release = Release(cluster, new_namespace())
    [values] = load((CHART / "ci" / f"{file}.yaml").read_text()) or [{}]
    if values.get("clients", {}).get("namespaces"):
        values["clients"]["namespaces"] = [new_namespace()]
    if name := values.get("stores", {}).get("credentialsSecret", {}).get("name"):
        secret = ["create", "secret", "generic", name, "--from-literal=credentials.yaml=x", "-n", release.namespace]
        cluster.kubectl(*secret)
    release.install(values, NO_WAIT)
    return release, values


def rendered_objects(release: Release, values: dict) -> list[dict]:
    """Returns what a tool applies: everything except hooks, which it runs at the start of a synchronization."""
    first, rendered = (load(template(release.cluster, release.major, values, release.namespace)) for _ in range(2))
    assert first == rendered, "two renderings are equal"
    return [item for item in rendered if "helm.sh/hook" not in item["metadata"].get("annotations", {})]


def scale(release: Release) -> dict[str, int]:
    """Changes the number of workers of each pool through the scale subresource, as a leader or KEDA does."""
    for name in replicas_of(release):
        release.cluster.kubectl("scale", name, f"--replicas={SCALED}", "--namespace", release.namespace)
    scaled = replicas_of(release)
    assert scaled and set(scaled.values()) == {SCALED}
    return scaled


def replicas_of(release: Release) -> dict[str, int]:
    """Returns the number of workers of each pool."""
    selector = "--selector=app.kubernetes.io/component=worker"
    found = release.cluster.kubectl_json("get", "deployment,statefulset", selector, "--namespace", release.namespace)
    return {f"{item['kind']}/{item['metadata']['name']}": item["spec"]["replicas"] for item in found["items"]}


def generations_of(release: Release) -> dict[str, int]:
    items = release.get("statefulset,deployment,pdb,cronjob")["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["generation"] for item in items}


def lasting_differences(release: Release, objects: list[dict], flags: list[str]) -> str:
    """Like `diff`, but ignores the status of a pod that starts between the two requests for an object."""
    for _ in range(5):
        if not (found := diff(release, objects, flags)):
            break
    return found


def diff(release: Release, objects: list[dict], flags: list[str]) -> str:
    """Returns what an application of the objects would change."""
    result = release.cluster.kubectl_result("diff", *flags, "--filename=-", input=dump(objects))
    assert result.returncode in (0, 1) and bool(result.stdout) == bool(result.returncode), result
    return result.stdout
