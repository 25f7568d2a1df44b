"""KEDA and the prometheus-operator in pods, from the programs of `make cluster-tools WITH="keda prometheus"`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness import Cluster
from harness.images import write_image
from harness.programs import TOOLS

MODULES = Path(__file__).parents[1] / "modules"
KEDA_IMAGES = {"keda": ("keda-operator", "keda"), "keda-metrics-apiserver": ("keda-adapter", "keda-adapter")}
OPERATOR_IMAGE, RELOADER_IMAGE = "feedline.test/prometheus-operator:1", "feedline.test/prometheus-config-reloader:1"
PROMETHEUS_IMAGE = "feedline.test/prometheus:1"
PROMETHEUS = TOOLS / "prometheus"
UNPRIVILEGED = {"User": "65532:65532"}
SELECTOR = {"matchLabels": {"prometheus": "tests"}}


def install_keda(cluster: Cluster) -> None:
    """Installs KEDA with images of its programs, and without its webhooks."""
    for image, (program, target) in KEDA_IMAGES.items():
        import_program(cluster, f"feedline.test/{image}:1", {target: TOOLS / program}, [f"/{target}"])
    objects = []
    for item in kustomized("keda", "github.com/kedacore/keda/v2", "config/default"):
        if item["kind"] == "ValidatingWebhookConfiguration" or item["metadata"]["name"] in (
            "keda-admission",
            "keda-admission-webhooks",
        ):
            continue
        for container in item["spec"]["template"]["spec"]["containers"] if item["kind"] == "Deployment" else []:
            name = container["image"].rpartition("/")[2].partition(":")[0]
            container |= {"image": f"feedline.test/{name}:1", "imagePullPolicy": "Never"}
        objects.append(item)
    create(cluster, objects)
    for name in ["keda-operator", "keda-metrics-apiserver"]:
        cluster.wait(f"deployment/{name}", "condition=Available", "keda")
    cluster.wait("apiservice/v1beta1.external.metrics.k8s.io", "condition=Available")


def install_prometheus_operator(cluster: Cluster, namespace: str) -> None:
    """Installs the operator and its CRDs, with a Prometheus that selects by the label `prometheus: tests`."""
    import_program(cluster, OPERATOR_IMAGE, {"bin/operator": TOOLS / "prometheus-operator"}, ["/bin/operator"])
    reloader = {"bin/prometheus-config-reloader": TOOLS / "prometheus-config-reloader"}
    import_program(cluster, RELOADER_IMAGE, reloader, ["/bin/prometheus-config-reloader"])
    import_program(cluster, PROMETHEUS_IMAGE, {"bin/prometheus": PROMETHEUS}, ["/bin/prometheus"])
    module = module_directory("prometheus-operator", "github.com/prometheus-operator/prometheus-operator")
    # `apply` would keep a copy of each, which is too long for CRDs.
    cluster.kubectl("create", "--filename", module / "example/prometheus-operator-crd")
    cluster.wait("crd/prometheuses.monitoring.coreos.com", "condition=Established")
    folder = module / "example/rbac"
    files = [path for path in sorted(folder.glob("prometheus-operator/*.yaml")) if "service-monitor" not in path.name]
    objects = read_objects([*files, *sorted(folder.glob("prometheus/prometheus-*.yaml"))])
    for item in objects:
        if item["kind"] == "Deployment":
            [container] = item["spec"]["template"]["spec"]["containers"]
            container |= {"image": OPERATOR_IMAGE, "imagePullPolicy": "Never"}
            flag = "--prometheus-config-reloader="
            container["args"] = [
                f"{flag}{RELOADER_IMAGE}" if arg.startswith(flag) else arg for arg in container["args"]
            ]
        if item["kind"] == "ServiceAccount" and item["metadata"]["name"] == "prometheus":
            item["metadata"]["namespace"] = namespace
        if item["kind"] == "ClusterRoleBinding" and item["metadata"]["name"] == "prometheus":
            item["subjects"][0]["namespace"] = namespace
    create(cluster, objects)
    cluster.wait("deployment/prometheus-operator", "condition=Available")
    cluster.apply(prometheus_object(), namespace=namespace)
    cluster.wait("pod/prometheus-tests-0", "create", namespace)
    cluster.wait("pod/prometheus-tests-0", "condition=Ready", namespace)


def prometheus_object() -> dict:
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": "tests"},
        "spec": {
            "image": PROMETHEUS_IMAGE,
            "version": prometheus_version(),
            "serviceAccountName": "prometheus",
            "podMonitorSelector": SELECTOR,
            "ruleSelector": SELECTOR,
            "evaluationInterval": "1s",
            "securityContext": security,
        },
    }


class Prometheus:
    """The HTTP API of the pod of `install_prometheus_operator`."""

    READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        pod = cluster.kubectl_json("get", "pod", "prometheus-tests-0", "-n", namespace)
        self.url, self.machine = f"http://{pod['status']['podIP']}:9090/api/v1", cluster.control_plane.machine

    def get(self, path: str) -> dict:
        command = self.machine.network_command(sys.executable, "-c", self.READ, f"{self.url}/{path}")
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["data"]

    def query(self, expression: str) -> list[dict]:
        from urllib.parse import quote

        return self.get(f"query?query={quote(expression)}")["result"]

    def targets(self) -> list[dict]:
        return self.get("targets?state=active")["activeTargets"]

    def rules(self) -> dict[str, dict]:
        return {rule["name"]: rule for group in self.get("rules")["groups"] for rule in group["rules"]}


def import_program(cluster: Cluster, name: str, files: dict[str, Path], entrypoint: list[str]) -> None:
    archive = write_image(
        cluster.state / f"{name.rpartition('/')[2]}.tar", name, files, UNPRIVILEGED | {"Entrypoint": entrypoint}
    )
    for node in cluster.nodes.values():
        node.import_image(archive)


def prometheus_version() -> str:
    output = subprocess.run([PROMETHEUS, "--version"], check=True, capture_output=True, text=True).stdout
    return output.split()[2].partition("+")[0]


def module_directory(module: str, path: str) -> Path:
    command = ["go", "list", "-m", "-f", "{{.Dir}}", path]
    return Path(
        subprocess.run(command, cwd=MODULES / module, check=True, capture_output=True, text=True).stdout.strip()
    )


def kustomized(module: str, path: str, folder: str) -> list[dict]:
    import yaml

    command = [TOOLS / "kubectl", "kustomize", module_directory(module, path) / folder]
    text = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]


def read_objects(files: list[Path]) -> list[dict]:
    import yaml

    return [item for file in files for item in yaml.load_all(file.read_text(), yaml.CSafeLoader) if item]


def create(
    cluster: Cluster,
    objects: list[dict],
    key: Callable = lambda item: item["kind"] not in ("Namespace", "CustomResourceDefinition"),
) -> None:
    """Creates objects, namespaces and CRDs first."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": sorted(objects, key=key)})
    cluster.kubectl("create", "--filename=-", input=text)
