"""Pipelines generated from a seed. Each has one known bottleneck by construction."""

import dataclasses
import random

# Minimum ratio of every other bound to the smallest bound.
MARGIN = 1.6
# CPU seconds per input row of a crop and of the engine. Approximate values suffice, because the operator `burn` takes most of the
# time.
CROP_S, ENGINE_S = 100e-6, 8e-6
# Lowest observed numbers of rows in flight without a limit, for small rows and for photographs.
SMALL_IN_FLIGHT, LARGE_IN_FLIGHT = 2, 6


@dataclasses.dataclass
class Operator:
    kind: str
    parameters: dict
    name: str = ""

    def cpu_s(self):
        return {"burn": self.parameters.get("cpu_us", 0) / 1e6, "random_resized_crop": CROP_S}.get(self.kind, 0.0)

    def wait_s(self):
        return self.parameters.get("ms", 0) / 1e3 if self.kind == "wait" else 0.0


@dataclasses.dataclass
class Shape:
    """A pipeline, its cluster, and its known bottleneck."""

    seed: int
    family: str
    data: str
    operators: list
    batch: int
    cores: int = 1
    workers: int = 1
    window: int = 0
    step_ms: int = 0
    store_bytes_per_s: float = 0.0
    store_latency_s: float = 0.0
    true: tuple = ("", None)

    def text(self):
        """Returns a short description for the table."""
        parts = [self.data]
        for operator in self.operators:
            value = {"burn": "cpu_us", "wait": "ms"}.get(operator.kind)
            unit = {"burn": " us", "wait": " ms"}.get(operator.kind, "")
            limit = operator.parameters.get("parallelism")
            parts.append(operator.kind + (f" {operator.parameters[value]}{unit}" if value else "") + (f" ({limit} at a time)" if limit else ""))
        extras = [f"{self.cores} cores" if self.cores > 1 else "1 core"]
        extras += [f"window {self.window}"] if self.window else []
        extras += [f"{self.workers} workers"] if self.workers > 1 else []
        extras += [f"step {self.step_ms} ms per {self.batch}"] if self.step_ms else []
        extras += [f"store {self.store_bytes_per_s / 1e6:.1f} MB/s"] if self.store_bytes_per_s else []
        extras += [f"store {1e3 * self.store_latency_s:.0f} ms per request"] if self.store_latency_s else []
        return ", ".join(parts + extras)


def named(operators):
    """Sets the operators' names as the engine does: the second operator of a kind is named `kind#2`."""
    seen = {}
    for operator in operators:
        seen[operator.kind] = count = seen.get(operator.kind, 0) + 1
        operator.name = operator.kind if count == 1 else f"{operator.kind}#{count}"
    return operators


def bounds(shape, data):
    """Returns the rows per second that each resource allows, by (kind, operator). For operators without a limit, uses a low estimate of the rows in flight."""
    kept = 1.0
    for operator in shape.operators:
        kept *= data.kept if operator.kind == "filter" else 1.0
    visits, cpu_s, found = 1.0 / kept, 0.0, {}
    costs = []
    for operator in shape.operators:
        costs.append((visits * operator.cpu_s(), operator))
        cpu_s += visits * operator.cpu_s()
        limit = operator.parameters.get("parallelism")
        service_s = visits * (operator.cpu_s() + operator.wait_s())
        if limit or operator.wait_s():
            in_flight = limit or (SMALL_IN_FLIGHT if data.row_bytes < 1000 else LARGE_IN_FLIGHT)
            kind = "latency" if operator.wait_s() else "sequential"
            found[kind, operator.name] = shape.workers * in_flight / service_s
        visits *= data.kept if operator.kind == "filter" else 1.0
    costliest = max(costs, key=lambda cost: cost[0], default=(0.0, None))[1]
    found["cpu", costliest.name if costliest and costliest.cpu_s() else None] = shape.cores / (cpu_s + ENGINE_S / kept)
    if shape.step_ms:
        found["consumer", None] = 1e3 * shape.batch / shape.step_ms
    if shape.store_bytes_per_s:
        found["store", "source"] = shape.store_bytes_per_s * kept / data.row_bytes
    return found


def known_bound(shape, data):
    """Returns the rows per second that the bottleneck allows, or None if this rate depends on the machine or the engine."""
    kind, name = shape.true
    is_limited = any(operator.name == name and operator.parameters.get("parallelism") for operator in shape.operators)
    if kind == "consumer" or (kind in ("sequential", "latency") and is_limited):
        return bounds(shape, data)[shape.true]
    return None


def made(seed, sets):
    """Returns the pipeline of a seed. Generates pipelines until one bound is below all others by the margin."""
    families = [cpu, sequential, latency, consumer, throttled, cpu_behind, far, unlimited_wait]
    family = families[seed % len(families)]
    for turn in range(10_000):
        draw = random.Random(f"{seed} {turn}")
        shape = family(draw, seed)
        named(shape.operators)
        found = bounds(shape, sets[shape.data])
        if shape.family == "far store":
            # The engine chooses the number of requests in flight, so all other bounds must be much higher.
            shape.true = ("latency", "source")
            if min(found.values()) > 6_000:
                return shape
            continue
        order = sorted(found.items(), key=lambda bound: bound[1])
        expected = {"cpu": "cpu", "cpu behind": "cpu", "sequential": "sequential", "consumer": "consumer", "throttled store": "store"}.get(shape.family, "latency")
        if order[0][0][0] == expected and (len(order) == 1 or order[1][1] > MARGIN * order[0][1]) and order[0][1] < 12_000:
            shape.true = order[0][0]
            return shape
    raise ValueError(f"seed {seed}: found no pipeline with the required margin")


def op(kind, **parameters):
    return Operator(kind, parameters)


def crop():
    return op("random_resized_crop", column="image", size=[16, 16])


def burn(draw, low, high, **more):
    return op("burn", cpu_us=draw.randrange(low, high), **more)


def table(draw):
    return draw.choice(["rows as jsonl", "rows as tfrecord"])


def few_cores(draw):
    cores = draw.choice([1, 2])
    return {"cores": cores, "workers": draw.choice([1, cores])}


def cpu(draw, seed):
    if draw.random() < 0.5:
        operators = [crop(), burn(draw, 200, 900), op("wait", ms=1, parallelism=draw.randrange(8, 17))]
        return Shape(seed, "cpu", "photographs", operators[: draw.choice([2, 3])], 32, **few_cores(draw))
    operators = [burn(draw, 80, 200), op("filter", where="label < 5"), burn(draw, 40, 400)]
    return Shape(seed, "cpu", table(draw), operators[: draw.choice([1, 2, 3])], 128, **few_cores(draw))


def cpu_behind(draw, seed):
    """All cores are busy. In addition, an operator has a limit, or the consumer or the store is slow."""
    operators = [crop(), burn(draw, 300, 900, parallelism=draw.choice([4, 8])), burn(draw, 20, 200)]
    shape = Shape(seed, "cpu behind", "photographs", operators, 32, **few_cores(draw))
    if draw.random() < 0.5:
        shape.step_ms = draw.randrange(2, 12)
    else:
        shape.store_bytes_per_s = draw.uniform(10e6, 40e6)
    return shape


def sequential(draw, seed):
    operators = [crop(), burn(draw, 10, 60), burn(draw, 300, 900, parallelism=1)]
    if draw.random() < 0.4:
        return Shape(seed, "sequential", table(draw), [burn(draw, 100, 200, parallelism=1), burn(draw, 5, 40)], 128, cores=2)
    return Shape(seed, "sequential", "photographs", operators[draw.choice([0, 1]) :], 32, cores=2)


def latency(draw, seed):
    wait = op("wait", ms=draw.randrange(2, 7), parallelism=draw.choice([1, 2, 4, 5]))
    operators = [crop(), burn(draw, 20, 200), wait, burn(draw, 20, 200)]
    return Shape(seed, "latency", "photographs", operators[draw.choice([0, 1]) :], draw.choice([16, 32]), **few_cores(draw))


def consumer(draw, seed):
    operators = [burn(draw, 20, 200), op("filter", where="label < 5"), burn(draw, 20, 100)]
    step = draw.randrange(20, 80)
    if draw.random() < 0.5:
        return Shape(seed, "consumer", "photographs", [crop(), burn(draw, 20, 200)], 32, step_ms=step, **few_cores(draw))
    return Shape(seed, "consumer", table(draw), operators[: draw.choice([1, 2, 3])], 64, step_ms=step, **few_cores(draw))


def throttled(draw, seed):
    operators = [crop(), burn(draw, 20, 150)]
    rate = draw.uniform(2e6, 12e6)
    window = draw.choice([0, 2048])
    return Shape(seed, "throttled store", "photographs", operators[draw.choice([0, 1]) :], 32, window=window, store_bytes_per_s=rate, **few_cores(draw))


def far(draw, seed):
    wait_s = draw.choice([0.1, 0.15, 0.2, 0.3])
    return Shape(seed, "far store", "photographs", [burn(draw, 5, 40)], 32, window=0, store_latency_s=wait_s, **few_cores(draw))


def unlimited_wait(draw, seed):
    """The pipeline sets no limit for `wait`, so the engine determines the number of concurrent executions."""
    operators = [crop(), burn(draw, 10, 60), op("wait", ms=draw.randrange(8, 30))]
    return Shape(seed, "unlimited wait", "photographs", operators[draw.choice([0, 1]) :], 32, **few_cores(draw))
