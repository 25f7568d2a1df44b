"""The API server admits the manifests in `deploy`, with the full schemas of the projects that own their kinds."""

import copy
import json

import pytest

from conftest import volume
from harness import Cluster
from harness.programs import REPOSITORY
from manifests import load

DEPLOY = REPOSITORY / "deploy"
PATHS = [*(DEPLOY / "examples").glob("*.yaml"), *(DEPLOY / "gitops").glob("*.yaml")]
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in PATHS)
DRY_RUN = ["create", "--dry-run=server", "--validate=strict", "--filename=-"]


def objects_of(file: str) -> list[dict]:
    return load((DEPLOY / file).read_text())


@pytest.fixture(scope="module")
def namespaces(control_plane: Cluster) -> None:
    control_plane.create_namespace("argocd", "flux-system", "ml", "training")


@pytest.mark.parametrize("file", FILES)
def test_a_manifest_is_valid(control_plane: Cluster, crds, namespaces, file: str):
    control_plane.kubectl(*DRY_RUN, input=(DEPLOY / file).read_text())


@pytest.mark.parametrize("file", FILES)
def test_a_misspelt_field_is_refused(control_plane: Cluster, crds, namespaces, file: str):
    """Proves that the schemas are complete: each object and each container is checked."""
    for item in objects_of(file):
        for path in places(item):
            changed = copy.deepcopy(item)
            place = changed
            for key in path:
                place = place[key]
            place["misspelt"] = "x"
            error = control_plane.kubectl_error(*DRY_RUN, input=json.dumps(changed))
            assert "unknown field" in error and "misspelt" in error, (path, error)


def test_the_plain_manifests_start_a_cluster(control_plane: Cluster):
    volumes = [volume(f"feedline-{number}", "feedline") for number in range(3)]
    control_plane.create_namespace("feedline")
    control_plane.apply(*volumes)
    control_plane.kubectl("apply", "--validate=strict", "--filename", DEPLOY / "kubernetes/feedline.yaml")
    control_plane.wait("job/feedline-keys-hook", "condition=Complete", "feedline")
    control_plane.wait("statefulset/feedline-coordinator", "jsonpath={.status.readyReplicas}=3", "feedline")
    control_plane.wait("deployment/feedline-worker", "jsonpath={.status.readyReplicas}=1", "feedline")
    generations = generations_of(control_plane)
    control_plane.kubectl("apply", "--validate=strict", "--filename", DEPLOY / "kubernetes/feedline.yaml")
    assert generations_of(control_plane) == generations, "the same manifests change nothing"


def generations_of(cluster: Cluster) -> dict[str, int]:
    items = cluster.kubectl_json("get", "statefulset,deployment,pdb,job", "--namespace=feedline")["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["generation"] for item in items}


def places(item: dict) -> list[list]:
    """Returns the paths of the specification and of all containers of an object."""
    found = [["spec"]] if "spec" in item else [[]]

    def visit(value: object, path: list) -> None:
        if isinstance(value, dict):
            if {"image", "name"} <= value.keys() or {"image", "command"} <= value.keys():
                found.append(path)
            for key, child in value.items():
                visit(child, [*path, key])
        elif isinstance(value, list):
            for index, child in enumerate(value):
                visit(child, [*path, index])

    visit(item, [])
    return found
