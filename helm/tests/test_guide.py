"""Tests of the operations guide, docs/kubernetes.md: each procedure names tests that exist, and values that the chart has."""

import re

import pytest

import readme

ROOT = readme.CHART.parents[1]
GUIDE = (ROOT / "docs/kubernetes.md").read_text()
# Sections without a procedure.
PROSE = {"Why there is no operator"}
SECTIONS = [section for section in re.split(r"^## ", GUIDE, flags=re.M)[1:] if section.splitlines()[0] not in PROSE]
NAMES = re.compile(r"`([a-z/]+/test_\w+\.py)::(test_\w+)`")
# The first part of keys in the guide that look like values of the chart.
PARTS = "auth|autoscaling|clients|coordinators|image|monitoring|networkPolicy|service|stores|tests|workers"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_each_procedure_names_tests_that_exist(section):
    names = NAMES.findall(section)
    assert names, "end the section with the tests that execute it, as `tests/cluster/test_nodes_smoke.py::test_smoke`"
    for file, name in names:
        assert (ROOT / file).exists(), f"{file} does not exist"
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), f"{file} has no {name}"


def test_the_guide_mentions_only_values_of_the_chart():
    known = {value.key for value in readme.read_values((readme.CHART / "values.yaml").read_text())}
    text = re.sub(r"\bworkers\.pools\b.*", "", GUIDE)
    mentioned = set(re.findall(rf"(?<![\w./-])((?:{PARTS})(?:\.[a-z][A-Za-z]+)+)(?![\w/-]|\.md)", text))
    assert len(mentioned) > 20
    unknown = {key for key in mentioned if not any(key == name or key.startswith(f"{name}.") for name in known)}
    assert not unknown, f"not in values.yaml: {sorted(unknown)}"


def test_the_commands_of_the_guide_name_existing_files():
    for path in set(re.findall(r"(?<![\w./])((?:helm|deploy)/[\w./-]+)", GUIDE)):
        assert (ROOT / path.rstrip(".")).exists(), path
