"""Tests of the files in `deploy` that belong to the chart or repeat facts about it."""

import tomllib

import pytest

from readme import CHART
from rendering import find_all, render_release

yaml = pytest.importorskip("yaml", reason="PyYAML is missing: run `make test-chart`")

DEPLOY = CHART.parents[1] / "deploy"
EXAMPLES = sorted(path.name for path in (DEPLOY / "examples").glob("*.yaml"))
# Keys of the Secret that the chart copies to the namespaces of trainers.
CLIENT_KEYS = {"ca.pem", "client.pem", "client-key.pem", "client.token"}


def load(path: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def mappings(value) -> list[dict]:
    """Returns all mappings in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    found = [mapping for item in inner for mapping in mappings(item)]
    return [value, *found] if isinstance(value, dict) else found


def strings(value: object) -> list[str]:
    """Returns all strings inside a value."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []


def by_name(objects: list[dict]) -> dict:
    return {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]): item for item in objects}


def test_the_plain_manifests_are_the_rendered_chart(helm):
    rendered = list(yaml.safe_load_all(render_release()))
    assert by_name(load("kubernetes/feedline.yaml")) == by_name([item for item in rendered if item]), "run `make chart`"


@pytest.mark.parametrize("path", ["gitops/argo-cd.yaml", "gitops/flux.yaml"])
def test_values_of_gitops_match_the_schema(path):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is missing: run `make test-chart`")
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    spec = load(path)[-1]["spec"]
    if path.endswith("argo-cd.yaml"):
        values, chart = spec["source"]["helm"]["valuesObject"], spec["source"]["path"]
    else:
        values, chart = spec["values"], spec["chart"]["spec"]["chart"]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for section, value in values.items():
        defaults[section] |= value
    jsonschema.validate(defaults, schema)
    assert (CHART.parents[1] / chart / "Chart.yaml").exists()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_use_the_secret_and_the_address_of_the_chart(name, helm):
    objects = load(f"examples/{name}")
    if name == "training.yaml":
        programs = objects[0]["data"]
        assert len(programs["train.py"].splitlines()) == 5
        for file in ("train.py", "train_on_ray.py"):
            compile(programs[file], file, "exec")
            assert 'name=os.environ["RUN_NAME"]' in programs[file], "each run needs another name"
        return
    texts = [text for item in objects for text in strings(item)]
    files = {text.rpartition("/")[2] for text in texts if text.startswith("/etc/feedline/keys/")}
    assert files == CLIENT_KEYS
    assert "RUN_NAME" in texts
    # Variables and flags that name the copied files, as roles and the Python package read them.
    variables = {"FEEDLINE_COORDINATOR", "FEEDLINE_TLS_CA", "FEEDLINE_TLS_CERT", "FEEDLINE_TLS_KEY", "FEEDLINE_TOKEN_FILE"}
    assert variables <= set(texts)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert defaults["clients"]["secretName"] in texts
    # A trainer that does not run as root reads the files as a member of the group of the volume.
    specs = [spec for item in objects for spec in mappings(item) if any("secret" in volume for volume in spec.get("volumes", []))]
    assert specs and all("fsGroup" in spec["securityContext"] for spec in specs)
    modes = {volume["secret"]["defaultMode"] for spec in specs for volume in spec["volumes"] if "secret" in volume}
    assert modes == {0o440}
    workers = find_all([item for item in yaml.safe_load_all(render_release()) if item], "Deployment")
    address = next(arg for arg in workers[0]["spec"]["template"]["spec"]["containers"][0]["args"] if "--coordinator" in arg)
    assert address.removeprefix("--coordinator=") in texts


def test_the_compose_file_runs_the_image_of_this_version():
    version = tomllib.loads((DEPLOY / "../Cargo.toml").read_text())["workspace"]["package"]["version"]
    services = load("compose.yaml")[0]["services"]
    assert {service["image"] for service in services.values()} == {f"docker.io/library/feedline:{version}"}


@pytest.mark.parametrize("role", ["coordinator", "worker"])
def test_systemd_waits_longer_than_the_grace_of_a_role(role):
    lines = (DEPLOY / f"systemd/feedline-{role}.service").read_text().splitlines()
    [timeout] = [int(line.partition("=")[2]) for line in lines if line.startswith("TimeoutStopSec=")]
    [grace] = [int(word[:-1]) for line in lines if "--grace" in line for word in line.split() if word == "10s"]
    assert timeout >= grace + 15
