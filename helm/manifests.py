#!/usr/bin/env python3
"""Writes `deploy/kubernetes/feedline.yaml`: the chart with its default values, for clusters without Helm."""

import sys
from pathlib import Path

from readme import CHART

sys.path.insert(0, str(Path(__file__).parent / "tests"))

from rendering import find_helm, render_release  # noqa: E402

HEADER = """\
# A cluster without Helm: kubectl create namespace feedline && kubectl apply -f deploy/kubernetes/feedline.yaml
# `make chart` renders this file from helm/feedline. Coordinators and workers wait until the Job feedline-keys-hook has
# created their keys. Load the image first, or replace `feedline:` by the name in your registry.
"""


def main() -> None:
    if not find_helm():
        sys.exit("Helm is missing: run `make test-chart` once, or set HELM")
    lines = render_release().splitlines()
    path = CHART.parents[1] / "deploy/kubernetes/feedline.yaml"
    path.write_text(HEADER + "\n".join(line.rstrip() for line in lines) + "\n")


if __name__ == "__main__":
    main()
