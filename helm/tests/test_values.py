"""Tests of the values, the schema and the README of the chart. They need only Python."""

import json

import pytest

import readme

CHART = readme.CHART
VALUES = readme.read_values((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def resolve(schema: dict) -> dict:
    reference = schema.get("$ref", "").removeprefix("#/definitions/")
    return SCHEMA["definitions"][reference] if reference else schema


def keys_of(schema: dict, prefix: str = "") -> set[str]:
    """Returns the keys that the schema accepts, as far as it lists them."""
    keys = set()
    for name, inner in resolve(schema).get("properties", {}).items():
        keys.add(f"{prefix}{name}")
        keys |= keys_of(inner, f"{prefix}{name}.")
    return keys


def test_the_readme_is_current():
    text = (CHART / "README.md").read_text()
    assert readme.updated(text, readme.build_table(VALUES)) == text, "run `python3 helm/readme.py`"


def test_the_schema_contains_exactly_the_values():
    # The keys of these objects are in the default, on one line.
    inline = ("auth.certManager.issuerRef.", "stores.credentialsSecret.", "workers.resources.", "coordinators.resources.", "tenants.")
    accepted = {key for key in keys_of(SCHEMA) if not key.startswith(inline)}
    # Charts that contain this one may disable it.
    assert accepted - {"enabled"} == {value.key for value in VALUES}


def test_the_schema_rejects_unknown_keys_of_each_section():
    def check(schema: dict, path: str) -> None:
        schema = resolve(schema)
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            for name, inner in schema["properties"].items():
                check(inner, f"{path}.{name}")

    check(SCHEMA, "values")
    check(SCHEMA["definitions"]["pool"], "pool")


def test_a_pool_may_set_all_values_of_workers_except_those_of_the_whole_role():
    pool, workers = SCHEMA["definitions"]["pool"]["properties"], SCHEMA["properties"]["workers"]["properties"]
    assert set(workers) - set(pool) == {"kind", "pools", "functions", "hostNetwork", "cacheStore", "serviceAccount"}
    assert set(pool) - set(workers) == {"name"} and all(workers[key] == pool[key] for key in set(pool) - {"name"})


def test_roles_have_the_same_values_for_pods():
    common = {"extraArgs", "extraEnv", "envFrom", "extraVolumes", "extraVolumeMounts", "initContainers", "extraContainers"}
    common |= {"podLabels", "podAnnotations", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"}
    common |= {"priorityClassName", "runtimeClassName", "dnsConfig", "serviceAccount"}
    for role in ("coordinators", "workers"):
        assert common <= set(SCHEMA["properties"][role]["properties"])


def test_an_upgrade_of_the_application_changes_the_chart():
    versions = dict(line.split(": ") for line in (CHART / "Chart.yaml").read_text().splitlines() if "ersion: " in line)
    workspace = (CHART / "../../Cargo.toml").read_text()
    assert f'version = {versions["appVersion"]}\n' in workspace
    assert versions["kubeVersion"] == '">=1.31.0-0"'


def test_a_key_without_a_comment_is_rejected_with_its_line():
    with pytest.raises(ValueError, match="values.yaml:3: the key b has no comment in the line above"):
        readme.read_values("# One.\na: 1\nb: 2\n")
    with pytest.raises(ValueError, match="values.yaml:2: expected `key: default` or a comment, found `- 1`"):
        readme.read_values("# Comment.\n- 1\n")
    inner = readme.read_values("# A.\na:\n  # B | C.\n  b: []\n")
    assert readme.build_table(inner).endswith("| **`a`** | | A. |\n| `a.b` | `[]` | B \\| C. |\n")
