"""The API server admits what both Helms render from each file of values, for several versions of Kubernetes."""

from functools import cache

import pytest

from harness import Cluster, CommandFailed
from manifests import load
from releases import CHART, template

FILES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
VERSIONS = ["1.31", "1.34", "1.37"]
DRY_RUN = ["apply", "--dry-run=server", "--validate=strict", "--filename=-"]
# Values that ask for what `restricted` forbids: the network of the node, and containers without a security context.
NOT_RESTRICTED = {"outside", "everything"}


@pytest.fixture(scope="module")
def namespaces(control_plane: Cluster) -> None:
    restricted = ["ml", "training", "team-a", "team-b"]  # the latter as `clients.namespaces` in the files
    control_plane.create_namespace(*restricted)
    control_plane.create_namespace("ml-not-restricted", labels={})


@cache
def values_of(file: str) -> dict:
    [values] = load((CHART / "ci" / f"{file}.yaml").read_text()) or [{}]
    return values


def test_the_api_server_admits_all_values(control_plane: Cluster, crds, namespaces):
    admitted = set()
    for file in FILES:
        namespace = "ml-not-restricted" if file in NOT_RESTRICTED else "ml"
        for version in VERSIONS:
            for major in [3, 4]:
                text = template(control_plane, major, values_of(file), namespace, version)
                if text not in admitted:  # Most versions lead to the same manifests.
                    admit(control_plane, namespace, text, f"{file} by Helm {major} for Kubernetes {version}")
                admitted.add(text)
    assert len(admitted) >= len(FILES)


def test_both_helms_render_the_same_objects(control_plane: Cluster):
    for file in FILES:
        three, four = (load(template(control_plane, major, values_of(file))) for major in [3, 4])
        assert sorted(three, key=str) == sorted(four, key=str), file


def test_the_api_server_refuses_a_field_that_does_not_exist(control_plane: Cluster, namespaces):
    text = template(control_plane, 4).replace("enableServiceLinks:", "enableServiceLink:")
    error = control_plane.kubectl_error(*DRY_RUN, input=text)
    assert 'unknown field "spec.template.spec.enableServiceLink"' in error


def admit(cluster: Cluster, namespace: str, text: str, what: str) -> None:
    """Sends manifests to the API server, which checks them, but stores nothing. A warning is an error."""
    # The API server admits a pod only if its service account exists.
    accounts = {item["spec"]["serviceAccountName"] for item in load(text) if item["kind"] == "Pod"}
    cluster.apply(*map(service_account, accounts), namespace=namespace)
    try:
        cluster.kubectl(*DRY_RUN, "--warnings-as-errors", input=text)
    except CommandFailed as error:
        raise AssertionError(f"{what}: {error}") from None


def service_account(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
