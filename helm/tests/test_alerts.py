"""Tests of the alerts and recording rules: unit tests with the shipped times, runbooks, and the metrics that they use."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from readme import CHART
from rendering import find, render

ROOT = CHART.parents[1]
UNIT_TESTS = Path(__file__).parent / "alerts"
RUNBOOKS = ROOT / "docs/runbooks"
ALERTS = sorted(path.stem for path in (CHART / "files/alerts").glob("*.yaml"))
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]

pytestmark = pytest.mark.usefixtures("helm")


def rendered_groups(*arguments: str) -> list[dict]:
    """Returns the groups of the rules with the default times."""
    objects = render("minimal", "--set", "monitoring.rules.enabled=true", *arguments)
    return find(objects, "PrometheusRule", "")["spec"]["groups"]


def rules_of(group: str) -> list[dict]:
    [rules] = [item["rules"] for item in rendered_groups() if item["name"] == f"feedline.{group}"]
    return rules


def run_unit_test(alert: str, groups: list[dict], folder: Path) -> subprocess.CompletedProcess:
    """Runs the unit test of an alert with promtool. The rules of a unit test are in the same directory."""
    import yaml

    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    test = folder / f"{alert}.test.yaml"
    shutil.copy(UNIT_TESTS / test.name, test)
    return subprocess.run(["promtool", "test", "rules", test.name], capture_output=True, text=True, cwd=folder)


def test_each_alert_has_a_unit_test_and_a_runbook():
    assert sorted(rule["alert"] for rule in rules_of("alerts")) == ALERTS
    assert sorted(path.name.removesuffix(".test.yaml") for path in UNIT_TESTS.glob("*.yaml")) == ALERTS
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README") == ALERTS


def test_promtool_accepts_the_rules(promtool, tmp_path):
    import yaml

    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": rendered_groups()}))
    result = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_after_its_time_and_not_in_a_healthy_case(promtool, tmp_path, alert):
    result = run_unit_test(alert, rendered_groups(), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("seconds", [0, 4 * 3600])
@pytest.mark.parametrize("alert", ALERTS)
def test_the_unit_test_of_an_alert_depends_on_its_time(promtool, tmp_path, alert, seconds):
    groups = rendered_groups("--set", f"monitoring.rules.for.{alert}={seconds}s")
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == alert]
    assert rule["for"] == f"{seconds}s"
    assert run_unit_test(alert, groups, tmp_path).returncode != 0


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_says_what_to_do(alert):
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    diagnosis = text.partition("## Diagnosis")[2].partition("## Mitigation")[0]
    assert "kubectl" in diagnosis, "name the commands that find the cause"


def test_an_alert_states_its_severity_and_one_sentence_each():
    for rule in rules_of("alerts"):
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        annotations = rule["annotations"]
        # The project publishes no runbooks, so a link needs `monitoring.rules.runbookUrl`.
        assert set(annotations) == {"summary", "description"}, rule["alert"]
        assert not annotations["summary"].endswith(".") and annotations["description"].count(". ") == 0, rule["alert"]


def test_rules_distinguish_clusters_and_use_documented_metrics():
    page = (ROOT / "docs/metrics.md").read_text()
    documented = set(re.findall(r"^\| `(feedline_\w+)` \|", page, re.MULTILINE))
    assert len(documented) > 40
    rules = rules_of("alerts") + rules_of("recording")
    assert rules
    for rule in rules:
        used = set(re.findall(r"feedline_\w+", rule["expr"]))
        assert used and used <= documented, f"{rule}: {used - documented} is not in docs/metrics.md"
        groupings = re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"])
        assert groupings, rule
        for labels in groupings:
            assert labels.split(", ")[:3] == ["cluster", "namespace", "release"], rule


def test_rules_group_by_labels_that_the_metrics_have():
    page = (ROOT / "docs/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(feedline_\w+)` \| \w+ \| (.+) \|$", page, re.MULTILINE))
    for rule in rules_of("alerts") + rules_of("recording"):
        # The monitors of the chart add the other labels.
        labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
        for label in labels - {"cluster", "namespace", "release", "pod"}:
            used = re.findall(r"feedline_\w+", rule["expr"])
            assert any(f"`{label}`" in rows[metric] for metric in used), f"{rule['expr']}: no metric has the label {label}"


def test_recorded_names_follow_the_convention():
    for rule in rules_of("recording"):
        assert re.fullmatch(r"[a-z_]+:feedline_[a-z_]+:[a-z0-9_]+", rule["record"]), rule["record"]


def test_monitors_add_the_label_by_which_rules_distinguish_releases():
    for kind, field in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        monitor = find(render("monitoring", "--set", f"monitoring.monitor={kind}"), kind, "")
        [endpoint] = monitor["spec"][field]
        release, node = endpoint["relabelings"]
        assert release["targetLabel"] == "release" and node["targetLabel"] == "node"
