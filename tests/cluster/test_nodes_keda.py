"""Scaling by KEDA, which runs in pods and asks the coordinators."""

import shutil

import pytest
from conftest import require
from harness.programs import TOOLS
from nodes.operators import install_keda
from test_nodes_scaling import VALUES, scaling

# KEDA asks every polling interval, and the HorizontalPodAutoscaler acts every 15 s.
PATCH_S, FED_S = 30, 60
KEDA = {"autoscaling": {"mode": "keda", "keda": {"pollingInterval": 2}}}


@pytest.fixture(scope="module")
def keda(nodes):
    require(None if shutil.which("go") else "Go is missing, so KEDA's manifests are not found: install Go")
    missing = [program for program in ["keda-operator", "keda-adapter"] if not (TOOLS / program).exists()]
    require(f"{TOOLS} lacks {', '.join(missing)}: run `make cluster-tools WITH=keda`" if missing else None)
    install_keda(nodes)


def test_keda_scaling(keda, release, reference):
    release.install(VALUES | {"autoscaling": VALUES["autoscaling"] | KEDA["autoscaling"]})
    release.cluster.wait(
        "scaledobject", "condition=Ready", release.namespace, selector=f"app.kubernetes.io/instance={release.name}"
    )
    scaling(release, reference, "KEDA", PATCH_S, FED_S)
