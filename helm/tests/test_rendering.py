"""Tests of the rendered chart: strict schemas of Kubernetes, and the properties that the README lists."""

import json

import pytest

from readme import CHART
from rendering import args_of, find, find_all, pod_of, render, run_helm

NAMES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
VERSIONS = ["1.31", "1.34", "1.37"]
# API groups of other projects, whose schemas are in their CRDs.
CUSTOM = ("cert-manager.io", "keda.sh", "monitoring.coreos.com")


pytestmark = pytest.mark.usefixtures("helm")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_all_objects_match_the_strict_schemas(schemas, name, version):
    for item in render(name, "--kube-version", f"{version}.0"):
        if not item["apiVersion"].startswith(CUSTOM):
            schemas.validate(item, version, strict=True)


def test_the_schemas_reject_a_misspelt_field(schemas):
    item = find(render("defaults"), "Deployment", "-worker")
    item["spec"]["strateggy"] = {}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(item, "1.37", strict=True)


def test_the_chart_passes_the_lint():
    result = run_helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_pods_satisfy_the_restricted_standard(name):
    for item in render(name):
        pod = pod_of(item)
        if not pod:
            continue
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod.get("hostNetwork", False) == (name == "outside" and item["kind"] == "Deployment")
        own = [container for container in pod["containers"] + pod.get("initContainers", []) if "args" in container]
        assert own
        for container in own:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("name", NAMES)
def test_only_pods_that_call_the_api_have_an_account_token(name):
    for item in render(name):
        if pod := pod_of(item):
            component = item["metadata"]["labels"]["app.kubernetes.io/component"]
            is_scaler = component == "coordinator" and "--scaler=kubernetes" in pod["containers"][0]["args"]
            assert pod["automountServiceAccountToken"] == (is_scaler or component == "keys"), item["metadata"]["name"]


@pytest.mark.parametrize("name", NAMES)
def test_rendering_again_changes_nothing_and_creates_no_keys(name):
    objects = render(name)
    assert objects == render(name)
    assert not find_all(objects, "Secret") and not find_all(objects, "ClusterRole")


def test_coordinators_find_each_other_before_they_are_ready():
    objects = render("defaults")
    item = find(objects, "StatefulSet", "-coordinator")
    args = args_of(item)
    host = "demo-feedline-coordinator.ml.svc:7070"
    assert args["--advertise"] == f"https://$(POD_NAME).{host}"
    assert args["--peers"].split(",") == [f"https://demo-feedline-coordinator-{ordinal}.{host}" for ordinal in range(3)]
    assert item["spec"]["podManagementPolicy"] == "Parallel"
    assert item["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    service = find(objects, "Service", "-coordinator")["spec"]
    assert service["publishNotReadyAddresses"] and service["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in find(objects, "Service", "")["spec"]
    container = pod_of(item)["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_certificate_names_all_addresses():
    objects = render("outside")
    hosts = args_of(find(objects, "Job", "-keys-hook"))["--host"].split(",")
    worker = args_of(find(objects, "Deployment", "-worker"))
    assert worker["--tls-name"] in hosts and worker["--coordinator"] == f"https://{worker['--tls-name']}:7070"
    assert "demo-feedline-coordinator-4.demo-feedline-coordinator.ml.svc" in hosts
    assert hosts[-2:] == ["feedline.example.org", "10.0.0.10"]
    certificate = find(render("cert-manager"), "Certificate", "-role-tls")["spec"]
    assert certificate["ipAddresses"] == ["10.0.0.10", "fd00::1"]
    assert "feedline.example.org" in certificate["dnsNames"] and "10.0.0.10" not in certificate["dnsNames"]


@pytest.mark.parametrize(("name", "worker", "coordinator"), [("defaults", 25, 25), ("everything", 45, 45)])
def test_pods_have_more_time_to_end_than_their_grace(name, worker, coordinator):
    pods = {item["kind"]: pod_of(item) for item in render(name) if item["kind"] in ("Deployment", "StatefulSet")}
    assert pods["Deployment"]["terminationGracePeriodSeconds"] == worker
    assert pods["StatefulSet"]["terminationGracePeriodSeconds"] == coordinator


def test_each_pool_has_its_own_settings_and_the_defaults_of_workers():
    objects = render("pools")
    spot, disk = (find(objects, "Deployment", f"-worker-{name}") for name in ("spot", "disk"))
    assert "--cache-dir" not in args_of(spot)
    assert args_of(disk)["--cache-disk"] == str(2**40 * 9 // 10)
    assert args_of(find(render("defaults"), "Deployment", "-worker"))["--cache-disk"] == str(20 * 2**30 * 9 // 10)
    resources = pod_of(spot)["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "8", "memory": "16Gi"}
    assert pod_of(disk)["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert "nodeSelector" not in pod_of(disk) and pod_of(spot)["tolerations"][0]["key"] == "spot"
    assert args_of(spot)["--pool"] == "spot"
    coordinator = pod_of(find(objects, "StatefulSet", "-coordinator"))["containers"][0]["args"]
    assert "--scale-pool=spot=deployment/demo-feedline-worker-spot:1..100" in coordinator
    assert "--scale-pool=disk=deployment/demo-feedline-worker-disk:4..8" in coordinator


@pytest.mark.parametrize("name", NAMES)
def test_only_mode_none_sets_the_number_of_workers(name):
    objects = render(name)
    workers = find_all(objects, "Deployment") + find_all(objects, "StatefulSet")
    workers = [item for item in workers if item["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"]
    assert workers
    assert [item["spec"].get("replicas") for item in workers] == ([1] if name == "minimal" else [None] * len(workers))


def test_selectors_contain_only_labels_that_never_change():
    names = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")} | {"feedline/pool"}
    for name in NAMES:
        for item in render(name):
            if item["kind"] in ("Deployment", "StatefulSet"):
                selector = item["spec"]["selector"]["matchLabels"]
                labels = item["spec"]["template"]["metadata"]["labels"]
                assert set(selector) <= names and selector.items() <= labels.items()


def test_budgets_exist_only_for_several_pods():
    budgets = find_all(render("defaults"), "PodDisruptionBudget")
    assert [item["spec"]["maxUnavailable"] for item in budgets] == [1, "25%"]
    one = ("--set", "podDisruptionBudgets.enabled=true")
    assert find_all(render("minimal", *one), "PodDisruptionBudget") == []


def test_the_leader_may_scale_its_pools_and_nothing_else():
    rules = find(render("defaults"), "Role", "-coordinator")["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["deployments"], ["get", "list", "watch"]),
        (["deployments/scale"], ["get", "patch"]),
    ]
    assert all(rule["resourceNames"] == ["demo-feedline-worker"] for rule in rules)
    assert find(render("pools"), "Role", "-coordinator")["rules"][2]["resources"] == ["pods"]
    names = [item["metadata"]["name"] for item in find_all(render("keda"), "Role")]
    assert "demo-feedline-coordinator" not in names


def test_keda_scales_each_pool_between_its_bounds():
    objects = render("keda")
    small, large = (find(objects, "ScaledObject", f"-worker-{name}")["spec"] for name in ("small", "large"))
    assert (small["minReplicaCount"], small["maxReplicaCount"]) == (1, 4)
    assert (large["minReplicaCount"], large["maxReplicaCount"]) == (2, 50)
    assert large["fallback"] == {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"}
    [growth] = large["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]["policies"]
    assert growth == {"type": "Pods", "value": 50, "periodSeconds": 15}, "the pool reaches its maximum in one step"
    assert large["triggers"][0]["metadata"] == {"scalerAddress": "demo-feedline.ml.svc:7072", "pool": "large"}
    assert find(objects, "TriggerAuthentication", "")
    keda = next(port for port in find(objects, "Service", "")["spec"]["ports"] if port["name"] == "keda")
    assert keda["port"] == 7072


def test_each_pod_mounts_only_the_keys_that_it_needs():
    def files(item: dict) -> set[str]:
        [volume] = [volume for volume in pod_of(item)["volumes"] if volume["name"] == "keys"]
        sources = [source["secret"]["items"] for source in volume["projected"]["sources"]]
        return {entry["path"] for items in sources for entry in items}

    role, client = ({"ca.pem", f"{name}.pem", f"{name}-key.pem"} for name in ("role", "client"))
    for name in ("defaults", "existing-secret", "cert-manager"):
        objects = render(name, "--set", "coordinators.syncMembers=always")
        assert files(find(objects, "StatefulSet", "-coordinator")) == role | {"secret"}
        assert files(find(objects, "Deployment", "-worker")) == role | {"worker.token"}
        assert files(find(objects, "Job", "-members")) == client | {"admin.token"}
        assert files(find(objects, "Pod", "-test")) == client | {"client.token"}
    objects = render("insecure")
    assert "--insecure" in args_of(find(objects, "Deployment", "-worker"))
    assert not any(volume["name"] == "keys" for volume in pod_of(find(objects, "Deployment", "-worker"))["volumes"])


def test_keys_are_copied_to_the_namespaces_of_trainers():
    objects = render("existing-secret")
    namespaces = [item["metadata"]["namespace"] for item in find_all(objects, "RoleBinding")]
    assert {"team-a", "team-b"} < set(namespaces)
    args = args_of(find(objects, "Job", "-clients"))
    assert (args["--source"], args["--copy-to"], args["--copy-tenant"]) == ("existing", "team-a,team-b", "vision")
    assert "demo-feedline-keys-hook" not in [item["metadata"]["name"] for item in find_all(objects, "Job")]
    renewed = args_of(find(objects, "CronJob", "-keys"))
    assert renewed == args


def test_jobs_may_only_use_the_secrets_that_they_need():
    def rules(objects: list[dict], name: str) -> list[tuple]:
        rules = find(objects, "Role", name)["rules"]
        return [(rule["verbs"], rule.get("resourceNames")) for rule in rules]

    generate = [(["create"], None), (["get", "patch"], ["demo-feedline-keys"]), (["get"], ["demo-feedline-ca"])]
    assert rules(render("defaults"), "-keys") == rules(render("defaults"), "-keys-hook") == generate
    issued = [(["create"], None), (["get", "patch"], ["demo-feedline-keys"]), (["get"], ["demo-feedline-client-tls"])]
    objects = render("cert-manager")
    assert rules(objects, "-keys") == rules(objects, "-keys-hook") == issued
    assert rules(objects, "-clients") == [(["create"], None), (["get", "patch"], ["feedline-client"])]
    assert rules(render("existing-secret"), "-keys") == [(["get"], ["my-keys"])]


def test_the_key_of_the_authority_is_in_no_pod():
    for name in NAMES:
        for item in render(name):
            if pod := pod_of(item):
                assert "demo-feedline-ca" not in json.dumps(pod["volumes"]), item["metadata"]["name"]


def test_created_secrets_have_the_labels_of_the_release():
    labels = dict(label.split("=") for label in args_of(find(render("defaults"), "Job", "-keys-hook"))["--label"].split(","))
    prefix = "app.kubernetes.io"
    assert labels[f"{prefix}/instance"] == "demo" and labels[f"{prefix}/component"] == "keys"
    args = next(args_of(item) for item in find_all(render("everything"), "Job") if "--label" in args_of(item))
    assert "team=platform" in args["--label"].split(",")


def test_alerts_have_a_runbook_and_can_be_changed():
    groups = find(render("monitoring"), "PrometheusRule", "")["spec"]["groups"]
    rules = {group["name"]: group["rules"] for group in groups}
    alerts = {rule["alert"]: rule for rule in rules["feedline.alerts"]}
    assert sorted(alerts) == sorted(path.stem for path in (CHART / "files/alerts").glob("*.yaml"))
    assert len(rules["feedline.recording"]) == len(list((CHART / "files/recording").glob("*.yaml")))
    assert alerts["FeedlineNoLeader"]["for"] == "5m"
    for name, alert in alerts.items():
        assert alert["annotations"]["runbook_url"] == f"https://wiki.example.org/runbooks/{name}.md"
    without = render("monitoring", "--set", "monitoring.rules.exclude[0]=FeedlineNoLeader")
    assert "FeedlineNoLeader" not in json.dumps(find(without, "PrometheusRule", ""))


def test_policies_admit_the_listed_clients():
    coordinator = find(render("restricted"), "NetworkPolicy", "-coordinator")["spec"]
    grpc, metrics, health = coordinator["ingress"]
    assert grpc["from"][1] == {"namespaceSelector": {"matchLabels": {"team": "vision"}}}
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert "from" not in health and coordinator["policyTypes"] == ["Ingress", "Egress"]
    assert coordinator["egress"][-1] == {"ports": [{"port": 9000}]}
    assert find(render("keda"), "NetworkPolicy", "-worker")["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("worker.max=1", "additional properties 'worker' not allowed"),
        ("workers.pools[0].name=a,workers.pools[0].maxx=1", "additional properties 'maxx' not allowed"),
        ("coordinators.replicas=2", "'/coordinators/replicas': value must be one of 1, 3, 5"),
        ("coordinators.graceSeconds=1", "'/coordinators/graceSeconds': minimum: got 1, want 5"),
        ("workers.graceSeconds=0", "'/workers/graceSeconds': minimum: got 0, want 5"),
        ("workers.resources.limits.memory=null", "'/workers/resources/limits': missing property 'memory'"),
        ("workers.cache.size=20GB", "'/workers/cache/size'"),
        ("auth.mode=insecure", "'/auth/everyoneMayReadAllData': value must be true"),
        ("auth.mode=existingSecret", "auth.existingSecret is empty: set it to the name of a Secret"),
        ("auth.mode=certManager", "auth.certManager.issuerRef.name is empty: set it to the name of an Issuer"),
        ("clients.scopes[0]=work", "'/clients/scopes/0': value must be one of 'submit', 'consume', 'observe'"),
        ("workers.min=20", "the pool default has min 20, which is larger than its max 10"),
        ("workers.pools[0].name=a,workers.pools[1].name=a", "two pools with the name a: give each pool another name"),
        ("autoscaling.mode=none,autoscaling.victimChoice=planner", "'/autoscaling/victimChoice'"),
        ("workers.kind=StatefulSet,autoscaling.victimChoice=planner", "a StatefulSet always stops the pods with the highest"),
    ],
)
def test_wrong_values_are_rejected_with_a_reason(setting, message):
    result = run_helm("template", "demo", str(CHART), "--set", setting)
    assert result.returncode != 0 and message in result.stderr, result.stderr


def test_the_notes_state_the_address_and_what_is_insecure():
    def notes(name: str) -> str:
        values = str(CHART / "ci" / f"{name}.yaml")
        install = ("install", "demo", str(CHART), "--namespace", "ml", "--dry-run=client", "--values", values)
        result = run_helm(*install)
        assert result.returncode == 0, result.stderr
        return result.stdout.partition("NOTES:")[2]

    text = notes("defaults")
    assert "https://demo-feedline.ml.svc:7070" in text and "get secret demo-feedline-keys" in text
    assert "delete pvc" in text and "delete secret demo-feedline-keys demo-feedline-ca\n" in text and "WARNING" not in text
    assert "WARNING: the cluster has neither TLS nor tokens" in notes("insecure")
    assert "delete secret" not in notes("insecure")
    deletes = [line.strip() for line in notes("existing-secret").splitlines() if "delete secret" in line]
    assert deletes == [f"kubectl --namespace {team} delete secret feedline-client" for team in ("team-a", "team-b")]
    assert "demo-feedline-ca" not in notes("cert-manager")
