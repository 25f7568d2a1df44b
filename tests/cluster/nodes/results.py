"""The numbers that tests measure: printed, and kept in target/cluster-results.json for docs/performance.md."""

import json
import time

from harness.programs import REPOSITORY

FILE = REPOSITORY / "target/cluster-results.json"


def record(name: str, **numbers: object) -> None:
    """Replaces the numbers of one test in the file."""
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in numbers.items())}", flush=True)
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results[name] = {"measured": time.strftime("%Y-%m-%d"), **numbers}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
