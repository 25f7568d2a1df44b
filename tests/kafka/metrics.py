"""Reads the metrics of a running process."""

import re
import urllib.request


def read_metrics(port: int) -> dict[str, float]:
    """Returns the values of Feedline's series by their names and labels. There are none before the process listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            text = response.read().decode()
    except OSError:
        return {}
    series = re.findall(r"^(feedline_\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in series}


def total(metrics: dict[str, float], name: str) -> float | None:
    """Returns the sum of the series of a metric, or `None` if it has none."""
    values = [value for series, value in metrics.items() if series.partition("{")[0] == name]
    return sum(values) if values else None
