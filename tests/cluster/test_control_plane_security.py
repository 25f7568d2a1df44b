"""Pod Security, and what the service accounts of the chart may do."""

import json

import pytest

from harness import Cluster
from manifests import dump, load
from releases import Release, template

COORDINATOR, WORKER = "demo-feedline-coordinator", "demo-feedline-worker"
SCALE = ("apps", "deployments/scale")


@pytest.fixture
def release(control_plane: Cluster, namespace: str) -> Release:
    return Release(control_plane, namespace)


def test_restricted_pod_security_refuses_values_that_violate_it(release):
    release.install()
    privileged = {"name": "shell", "image": "shell", "securityContext": {"privileged": True}}
    release.cluster.helm(
        4, "upgrade", "demo", release.chart, "--namespace", release.namespace, "--values=-",
        input=json.dumps({"workers": {"extraContainers": [privileged]}}),
    )  # fmt: skip

    def is_refused(events: dict) -> list:
        messages = [event["message"] for event in events.values() if event["reason"] == "FailedCreate"]
        return [message for message in messages if 'violates PodSecurity "restricted' in message]

    release.cluster.watch("events", is_refused, release.namespace)
    # The workers of the former revision remain.
    assert release.get(f"deployment/{WORKER}")["status"]["readyReplicas"] == 1


def test_a_coordinator_may_only_scale_its_pools(release):
    pools = [{"name": "spot"}, {"name": "disk"}]
    release.install({"workers": {"pools": pools}})
    names = [f"{WORKER}-spot", f"{WORKER}-disk"]
    rules = rules_of(release, COORDINATOR)
    assert set(rules) == {("apps", "deployments"), SCALE}, rules
    assert rules["apps", "deployments"].names == rules[SCALE].names == set(names)
    assert rules["apps", "deployments"].verbs <= {"get", "list", "watch"}
    assert rules[SCALE].verbs == {"get", "patch"}
    for name in names:
        assert can(release, COORDINATOR, "patch", f"deployments.apps/{name}", "--subresource=scale")
    for denied in [
        ["patch", "deployments.apps/other", "--subresource=scale"],
        ["patch", f"deployments.apps/{names[0]}"],
        ["patch", f"statefulsets.apps/{COORDINATOR}", "--subresource=scale"],
        ["delete", "pods"],
        ["patch", "pods"],
        ["get", "secrets"],
        ["create", "pods"],
    ]:
        assert not can(release, COORDINATOR, *denied), denied
    # Nor in another namespace.
    other = ["patch", f"deployments.apps/{names[0]}", "--subresource=scale", "--namespace=default"]
    assert not can(release, COORDINATOR, *other)


def test_a_coordinator_that_chooses_victims_may_patch_pods(release):
    release.install({"autoscaling": {"victimChoice": "planner"}})
    rules = rules_of(release, COORDINATOR)
    assert set(rules) == {("apps", "deployments"), SCALE, ("", "pods")}, rules
    assert "patch" in rules["", "pods"].verbs and not {"create", "delete"} & rules["", "pods"].verbs


@pytest.mark.parametrize("mode", ["keda", "none"])
def test_a_coordinator_that_does_not_scale_has_no_permission(release, crds, mode):
    release.install({"autoscaling": {"mode": mode}})
    assert rules_of(release, COORDINATOR) == {}
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in pods(release, "coordinator"))


def test_a_worker_has_no_permission_and_no_token(release):
    release.install()
    assert rules_of(release, WORKER) == {}
    [pod] = pods(release, "worker")
    assert pod["spec"]["serviceAccountName"] == WORKER
    assert "serviceAccountToken" not in json.dumps(pod["spec"]["volumes"])


def test_the_hook_may_only_create_and_change_its_secrets(release):
    release.cluster.kubectl("apply", "--filename=-", input=hook_permissions(release))
    account, secret = "demo-feedline-keys-hook", "secrets/demo-feedline-keys"
    rules = rules_of(release, account)
    assert set(rules) == {("", "secrets")}, rules
    # Kubernetes cannot limit `create` to a name.
    assert can(release, account, "create", "secrets")
    assert can(release, account, "patch", secret)
    others = ["get secrets", "list secrets", "get secrets/other", "patch secrets/other"]
    for denied in [*others, f"delete {secret}"]:
        assert not can(release, account, *denied.split()), denied


def test_copies_of_keys_are_limited_to_one_secret_of_the_named_namespaces(release, new_namespace):
    team = new_namespace()
    release.install({"clients": {"namespaces": [team]}})
    account = "demo-feedline-keys"
    assert can(release, account, "patch", "secrets/feedline-client", f"--namespace={team}")
    assert not can(release, account, "get", "secrets/other", f"--namespace={team}")
    assert not can(release, account, "list", "secrets", f"--namespace={team}")
    assert not can(release, account, "get", "secrets/feedline-client", "--namespace=default")


def pods(release: Release, component: str) -> list[dict]:
    selector = f"--selector=app.kubernetes.io/component={component}"
    found = release.cluster.kubectl_json("get", "pods", selector, "--namespace", release.namespace)["items"]
    assert found, component
    return found


class Rule:
    """The verbs and the names of objects for one resource."""

    def __init__(self) -> None:
        self.verbs, self.names = set(), set()

    def __repr__(self) -> str:
        return f"{sorted(self.verbs)} of {sorted(self.names)}"


def rules_of(release: Release, account: str) -> dict[tuple[str, str], Rule]:
    """Asks the API server for all permissions of a service account, without those that every account has."""
    common = {str(rule) for rule in review(release, "default")}
    rules: dict[tuple[str, str], Rule] = {}
    for rule in review(release, account):
        if str(rule) not in common:
            for group in rule.get("apiGroups", [""]):
                for resource in rule["resources"]:
                    entry = rules.setdefault((group, resource), Rule())
                    entry.verbs |= set(rule["verbs"])
                    entry.names |= set(rule.get("resourceNames", []))
    return rules


def review(release: Release, account: str) -> list[dict]:
    request = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": release.namespace},
    }
    # `--raw`, because an account without permissions cannot read the schemas that kubectl validates with.
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    command = ["create", "--raw", path, "--filename=-", f"--as={user(release, account)}"]
    status = json.loads(release.cluster.kubectl(*command, input=json.dumps(request)))["status"]
    assert not status["incomplete"], status
    return status["resourceRules"]


def can(release: Release, account: str, *action: str) -> bool:
    namespace = [] if any(part.startswith("--namespace") for part in action) else ["--namespace", release.namespace]
    command = ["auth", "can-i", *action, *namespace, f"--as={user(release, account)}"]
    result = release.cluster.kubectl_result(*command)
    assert result.stdout.strip() in {"yes", "no"}, result
    return result.stdout.strip() == "yes"


def user(release: Release, account: str) -> str:
    return f"system:serviceaccount:{release.namespace}:{account}"


def hook_permissions(release: Release) -> str:
    """The service account and the permission of the hook, which exist only while it runs."""
    kinds = {"ServiceAccount", "Role", "RoleBinding"}
    return dump(
        item
        for item in load(template(release.cluster, 4, namespace=release.namespace))
        if item["kind"] in kinds and item["metadata"]["name"] == "demo-feedline-keys-hook"
    )
