"""Reads YAML as Kubernetes does."""

from collections.abc import Iterable

import yaml


class Loader(yaml.CSafeLoader):
    """Reads `=` as text, as YAML 1.2 does."""


Loader.add_constructor("tag:yaml.org,2002:value", Loader.construct_yaml_str)


def load(text: str) -> list[dict]:
    return [item for item in yaml.load_all(text, Loader) if item]


def dump(objects: Iterable[dict]) -> str:
    return yaml.dump_all(objects)
