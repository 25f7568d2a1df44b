"""Reads the metrics of all coordinators again and again in a pod, and prints the changed values as JSON lines.

    observer.py HEADLESS_SERVICE [INTERVAL]
    observer.py --once ADDRESS:PORT

The second form prints all metrics of a role once. A line of the first form has the Unix time, the address of the
coordinator, and the values of the metrics `feedline_coordinator_*` that are gauges of the planner and the scaler.
"""

import json
import os
import re
import socket
import ssl
import sys
import time
import urllib.request

NAMES = re.compile(
    r"^(feedline_coordinator_(?:leads|wanted_workers|scaled_workers|fed_fraction|workers|term)(?:\{[^}]*\})?) (\S+)$",
    re.MULTILINE,
)


def main() -> None:
    if sys.argv[1] == "--once":
        print(fetch(sys.argv[2], tls()))
        return
    service, interval = sys.argv[1], float([*sys.argv, "0.2"][2])
    context = tls()
    last: dict[str, dict] = {}
    while True:
        begun = time.time()
        for address in addresses(service):
            values = read(address, context)
            if values is not None and values != last.get(address):
                last[address] = values
                print(json.dumps({"at": round(time.time(), 3), "address": address, **values}), flush=True)
        time.sleep(max(0.0, begun + interval - time.time()))


def addresses(service: str) -> list[str]:
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(service, 7170, socket.AF_INET, socket.SOCK_STREAM)})
    except OSError:
        return []


def read(address: str, context: ssl.SSLContext | None) -> dict[str, float] | None:
    try:
        text = fetch(f"{address}:7170", context)
    except OSError:
        return None
    return {name.removeprefix("feedline_coordinator_"): float(value) for name, value in NAMES.findall(text)}


def fetch(address: str, context: ssl.SSLContext | None) -> str:
    """Returns the metrics of a role."""
    request = urllib.request.Request(f"{'https' if context else 'http'}://{address}/metrics")
    if file := os.environ.get("FEEDLINE_TOKEN_FILE"):
        with open(file, encoding="ascii") as token:
            request.add_header("authorization", f"Bearer {token.read().strip()}")
    with urllib.request.urlopen(request, timeout=1, context=context) as answer:
        return answer.read().decode()


def tls() -> ssl.SSLContext | None:
    if not (ca := os.environ.get("FEEDLINE_TLS_CA")):
        return None
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False  # The addresses of pods are in no certificate.
    context.load_cert_chain(os.environ["FEEDLINE_TLS_CERT"], os.environ["FEEDLINE_TLS_KEY"])
    return context


if __name__ == "__main__":
    main()
