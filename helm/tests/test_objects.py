"""Tests of single objects of the chart: services, probes, volumes, images, spread, and values of roles and pools."""

import pytest

from readme import CHART
from rendering import args_of, find, find_all, pod_of, render, run_helm

pytestmark = pytest.mark.usefixtures("helm")

DIGEST = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"


def probe(path: str, period: int, failures: int) -> dict:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period, "failureThreshold": failures}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_probes_use_the_port_without_tls(kind):
    [item] = find_all(render("defaults"), kind)
    [container] = pod_of(item)["containers"]
    assert container["startupProbe"] == probe("/startupz", 2, 60)
    assert container["readinessProbe"] == probe("/readyz", 2, 2)
    assert container["livenessProbe"] == probe("/healthz", 10, 6) | {"timeoutSeconds": 5}
    [port] = [port["containerPort"] for port in container["ports"] if port["name"] == "health"]
    assert args_of(item)["--health"] == f"0.0.0.0:{port}"


def test_services_state_the_protocol_and_only_the_headless_one_contains_coordinators_that_are_not_ready():
    services = {item["metadata"]["name"]: item["spec"] for item in find_all(render("outside"), "Service")}
    for name, spec in services.items():
        [grpc] = [port for port in spec["ports"] if port["name"] == "grpc"]
        assert grpc["appProtocol"] == "grpc" and grpc["port"] == 7070, name
        is_for_finding_the_leader = name.startswith("demo-feedline-coordinator")
        assert spec.get("publishNotReadyAddresses", False) == is_for_finding_the_leader
    assert services["demo-feedline"]["type"] == "LoadBalancer"
    assert services["demo-feedline"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]


def test_trainers_outside_reach_each_coordinator_under_the_name_in_its_certificate():
    objects = render("outside")
    for ordinal in range(3):
        spec = find(objects, "Service", f"-coordinator-{ordinal}")["spec"]
        assert spec["type"] == "LoadBalancer" and spec["ports"][0]["port"] == 7070
        assert spec["selector"]["statefulset.kubernetes.io/pod-name"] == f"demo-feedline-coordinator-{ordinal}"
    assert len(find_all(render("defaults"), "Service")) == 2


def test_workers_on_the_network_of_the_node_replace_each_other():
    deployment = find(render("outside"), "Deployment", "-worker")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "25%"}
    pod = pod_of(deployment)
    assert pod["hostNetwork"] and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    usual = find(render("defaults"), "Deployment", "-worker")["spec"]
    assert usual["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}


def test_roles_listen_on_both_families_and_a_worker_advertises_one_address():
    objects = render("keda", "--set", "listenHost=[::]")
    listeners = {"--listen", "--http", "--health", "--scaler-listen"}
    roles = [item for kind in ("StatefulSet", "Deployment") for item in find_all(objects, kind)]
    addresses = {address for item in roles for flag, address in args_of(item).items() if flag in listeners}
    assert addresses == {f"[::]:{port}" for port in (7070, 7170, 7180, 7072, 7071, 7171, 7181)}
    for worker in find_all(objects, "Deployment"):
        assert args_of(worker)["--advertise-host"] == "$(POD_IP)"
        variables = {item["name"]: item.get("valueFrom") for item in pod_of(worker)["containers"][0]["env"]}
        # The first of `status.podIPs`, whose family is that of the kubelet's probes and of the Services.
        assert variables["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        ("20Gi", 20 * 2**30 * 9 // 10),
        ("1.5Gi", 1_449_551_462),
        ("0.5Ti", 494_780_232_499),
        ("500M", 450_000_000),
        ("500k", 450_000),
        ("2P", 1_800_000_000_000_000),
        ("1e9", 900_000_000),
        ("1.5E10", 13_500_000_000),
        ("107374182400", 96_636_764_160),
    ],
)
def test_the_cache_uses_nine_tenths_of_its_volume(size, limit):
    setting = ("--set-string", f"workers.cache.size={size}")
    worker = find(render("defaults", *setting), "Deployment", "-worker")
    [volume] = [volume for volume in pod_of(worker)["volumes"] if volume["name"] == "cache"]
    assert volume["emptyDir"] == {"sizeLimit": size}
    assert args_of(worker)["--cache-disk"] == str(limit)
    claims = find(render("stateful-workers", *setting), "StatefulSet", "-worker")["spec"]["volumeClaimTemplates"]
    assert claims[0]["spec"]["resources"]["requests"] == {"storage": size}


def test_a_size_in_bytes_may_be_a_number():
    worker = find(render("defaults", "--set-json", "workers.cache.size=107374182400"), "Deployment", "-worker")
    assert args_of(worker)["--cache-disk"] == "96636764160"
    [volume] = [volume for volume in pod_of(worker)["volumes"] if volume["name"] == "cache"]
    assert volume["emptyDir"] == {"sizeLimit": "107374182400"}


@pytest.mark.parametrize("size", ["0Gi", "20", "20GB", "-1Gi", "1.5.5Gi", "Gi", "500m", "1e"])
def test_a_size_that_kubernetes_cannot_use_is_rejected(size):
    result = run_helm("template", "demo", str(CHART), "--set-string", f"workers.cache.size={size}")
    assert result.returncode != 0 and "'/workers/cache/size'" in result.stderr, result.stdout[:200]


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("workers.pools[0].name=a,workers.pools[0].resources.limits.cpu=8", "/workers/pools/0/resources/limits"),
        ("workers.resources.limits.memory=0", "/workers/resources/limits/memory"),
        ("coordinators.resources.limit.memory=1Gi", "/coordinators/resources"),
        ("tenants.tenants.vision.core=4", "/tenants/tenants/vision"),
        ("service.perCoordinators=true", "/service"),
        ("coordinators.replicas=4", "/coordinators/replicas"),
        ("listenHost=::", "/listenHost"),
        ("listenHost=0.0.0.0:7070", "/listenHost"),
    ],
)
def test_values_that_would_be_ignored_or_unsafe_are_rejected(setting, place):
    result = run_helm("template", "demo", str(CHART), "--set", setting)
    assert result.returncode != 0 and f"'{place}'" in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("settings", "rejected"),
    [
        ("auth.days=3", "auth.days"),
        ("auth.days=4,auth.tokenExpiry=72h", "auth.tokenExpiry"),
        ("auth.days=4,auth.tokenExpiry=73h", None),
        ("auth.tokenExpiry=1.5d,auth.renewSchedule=7 * * * *", None),
        ("auth.tokenExpiry=90m,auth.renewSchedule=7 * * * *", "auth.tokenExpiry"),
        ("auth.tokenExpiry=never", None),
        # The interval of other schedules is not computed.
        ("auth.tokenExpiry=1h,auth.renewSchedule=*/5 * * * 1-5", None),
    ],
)
def test_keys_that_expire_before_their_renewal_are_rejected(settings, rejected):
    result = run_helm("template", "demo", str(CHART), "--set", settings)
    if rejected:
        assert f"{rejected} is too short" in result.stderr, result.stderr
    else:
        assert result.returncode == 0, result.stderr


def test_all_pods_run_one_image_which_a_digest_selects():
    def images(name: str, *arguments: str) -> set[str]:
        pods = [pod for item in render(name, *arguments) if (pod := pod_of(item))]
        return {container["image"] for pod in pods for container in pod["containers"] + pod.get("initContainers", [])}

    assert images("defaults", "--set", "coordinators.syncMembers=always") == {"feedline:0.1.0"}
    assert images("defaults", "--set", "image.tag=1-python") == {"feedline:1-python"}
    assert images("restricted", "--set", "image.tag=v1") == {f"registry.example.org/feedline@{DIGEST}"}
    pods = [pod for item in render("restricted") if (pod := pod_of(item))]
    assert pods and all(pod["imagePullSecrets"] == [{"name": "registry"}] for pod in pods)


def test_pods_of_a_role_are_spread_over_zones_and_nodes():
    """Zones have no spread constraint: on nodes without zones, the scheduler would ignore the constraint for nodes too."""

    def spread(name: str, kind: str) -> tuple:
        [item] = find_all(render(name), kind)
        pod, selector = pod_of(item), {"matchLabels": item["spec"]["selector"]["matchLabels"]}
        [node] = pod["topologySpreadConstraints"]
        [zone] = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        zone = zone["podAffinityTerm"]
        assert (node["topologyKey"], zone["topologyKey"]) == ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        assert node["labelSelector"] == zone["labelSelector"] == selector
        assert node.get("matchLabelKeys") == zone.get("matchLabelKeys")
        return node["whenUnsatisfiable"], node.get("matchLabelKeys")

    assert spread("defaults", "StatefulSet") == ("ScheduleAnyway", None)
    assert spread("defaults", "Deployment") == ("ScheduleAnyway", ["pod-template-hash"])
    assert spread("restricted", "StatefulSet") == ("DoNotSchedule", None)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_values_of_a_role_reach_its_pod(kind):
    [item] = find_all(render("everything"), kind)
    pod = pod_of(item)
    container = pod["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert {"name": "A", "value": "b"} in container["env"]
    assert {"name": "datasets", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    assert {"name": "datasets", "persistentVolumeClaim": {"claimName": "datasets"}} in pod["volumes"]
    assert [entry["name"] for entry in pod["initContainers"]] == ["wait"] and pod["containers"][1]["name"] == "proxy"
    assert pod["nodeSelector"] == {"disk": "ssd"} and pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "high" and pod["runtimeClassName"] == "gvisor"
    assert pod["dnsConfig"] == {"options": [{"name": "ndots", "value": "2"}]} and "podAntiAffinity" in pod["affinity"]
    assert [constraint["topologyKey"] for constraint in pod["topologySpreadConstraints"]] == ["rack"]
    metadata = item["spec"]["template"]["metadata"]
    assert metadata["labels"]["a"] == "b" and metadata["annotations"]["c"] == "d"
    assert "--credentials=/etc/feedline/credentials/credentials.yaml" in container["args"]
    assert {"--allow-url=s3://datasets", "--allow-url=/data", "--allow-metadata-addresses"} <= set(container["args"])


def test_values_of_a_pool_reach_only_its_pods():
    objects = render("pools")
    spot, disk = (find(objects, "Deployment", f"-worker-{name}") for name in ("spot", "disk"))
    assert pod_of(spot)["terminationGracePeriodSeconds"] == 35 and pod_of(disk)["terminationGracePeriodSeconds"] == 25
    assert (args_of(spot)["--nic"], args_of(disk)["--nic"]) == ("1.25GB", "0")
    assert "scratch" in [volume["name"] for volume in pod_of(spot)["volumes"]]
    assert "scratch" not in [volume["name"] for volume in pod_of(disk)["volumes"]]
    assert [constraint["topologyKey"] for constraint in pod_of(spot)["topologySpreadConstraints"]] == ["rack"]
    assert [constraint["topologyKey"] for constraint in pod_of(disk)["topologySpreadConstraints"]] == ["kubernetes.io/hostname"]


def test_policies_admit_the_namespaces_that_receive_keys():
    policy = ("--set", "networkPolicy.enabled=true")
    for role in ("coordinator", "worker"):
        [first, *_] = find(render("existing-secret", *policy), "NetworkPolicy", f"-{role}")["spec"]["ingress"]
        namespaces = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
        assert {"namespaceSelector": {"matchExpressions": [namespaces]}} in first["from"]
        assert {"podSelector": {}} in first["from"]


def test_a_shrinking_cluster_removes_members_before_their_pods():
    job = find(render("defaults", "--set", "coordinators.syncMembers=always,coordinators.replicas=1"), "Job", "-members")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    [container] = pod_of(job)["containers"]
    assert container["args"] == ["members", "sync", "https://demo-feedline-coordinator-0.demo-feedline-coordinator.ml.svc:7070", "--log=json"]


def test_a_rollback_to_fewer_coordinators_removes_members_before_their_pods():
    def rollback_flags(*settings: str) -> list[str]:
        job = find(render("defaults", "--set", ",".join(["coordinators.replicas=1", *settings])), "Job", "-members-rollback")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-rollback"
        [container] = pod_of(job)["containers"]
        assert container["args"][:2] == ["members", "sync"] and container["args"][2].count("https://") == 1
        return container["args"][3:-1]

    assert rollback_flags() == ["--if-surplus", "--allow-no-leader"]
    assert rollback_flags("coordinators.syncMembers=always") == ["--if-surplus", "--allow-no-leader"]
    # A cluster that loses its majority and the volumes of the removed coordinators cannot be repaired.
    assert rollback_flags("coordinators.persistence.whenScaled=Delete") == ["--if-surplus"]
    for setting in ("coordinators.syncMembers=never", "coordinators.replicas=5"):
        names = [job["metadata"]["name"] for job in find_all(render("defaults", "--set", setting), "Job")]
        assert "demo-feedline-keys-hook" in names and "demo-feedline-members-rollback" not in names, setting


def test_the_test_checks_members_and_workers_and_runs_the_given_pipeline():
    def commands(name: str) -> list[list[str]]:
        pod = pod_of(next(item for item in render(name) if item["kind"] == "Pod"))
        return [container["args"] for container in pod["initContainers"] + pod["containers"]]

    assert commands("defaults") == [
        ["members", "list", "--expect-voters=3"],
        ["top", "--once", "--min-workers=1", "--format=json"],
        ["job", "list"],
    ]
    assert commands("pools")[1][2] == "--min-workers=5" and commands("minimal")[1][2] == "--min-workers=1"
    assert commands("everything")[2] == ["run", "/etc/feedline/pipeline/pipeline.yaml", "--audit"]
