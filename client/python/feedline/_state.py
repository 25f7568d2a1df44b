"""State dicts, which training checkpoints store. A state dict is small, readable JSON with the position of a job, and identifies the
pipeline and the data."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedline import _native
from feedline._arguments import to_json_value
from feedline._native import WrongUse

VERSION = 1
Position = tuple[int, int, int]
"""The next undelivered row of a slot: slot, epoch, row."""

_NOT_A_STATE = "this is not a job state; pass the result of state_dict()"


def pipeline_parts(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a pipeline that a state contains for comparison. Large parts are hashed, so that states stay small."""
    return {
        "source": _hash(pipeline["source"]),
        "order": pipeline["order"],
        "on_error": pipeline["on_error"],
        "seed": pipeline["seed"],
        "shuffle": pipeline["shuffle"]["window"],
        "operators": [
            f"{name}:{_hash(_row_parameters(name, parameters))}" for operator in pipeline["operators"] for name, parameters in operator.items()
        ],
    }


def _row_parameters(name: str, parameters: Any) -> Any:
    """Returns the parameters of an operator that affect rows. For functions, excludes the settings of processes, and code with a version."""
    if name not in ("map", "filter_function"):
        return parameters
    ignored = {"path", "environment", "timeout_s", "memory", "rows"} | ({"code"} if parameters.get("version") else set())
    return {key: value for key, value in parameters.items() if key not in ignored}


def _hash(part: Any) -> str:
    return f"{zlib.crc32(json.dumps(_without_execution(part), sort_keys=True).encode()):08x}"


def _without_execution(part: Any) -> Any:
    """Removes the keys of a pipeline that do not affect rows."""
    if isinstance(part, dict):
        return {key: _without_execution(value) for key, value in part.items() if key not in ("parallelism", "credentials")}
    return [_without_execution(item) for item in part] if isinstance(part, list) else part


def build_state(
    *,
    identity: dict[str, Any],
    layout: dict[str, Any],
    ranks: int,
    positions: Sequence[Position],
    batches: int,
    missing: Sequence[int] = (),
    mix: Sequence[dict[str, Any]] = (),
    start: Sequence[tuple[int, int]] | None = None,
    growth: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Builds the state of a deterministic job from the positions of one rank, or of all ranks.

    Args:
        identity: keys that identify the pipeline and the data.
        missing: ranks whose positions are unknown, if positions depend on the rows.
        mix: changes of the mix weights.
        start: epoch and row of each slot at the start of the job. ``None`` if the job started at the beginning.
        growth: recorded partitions and segments of an unbounded job.
    """
    state = {"version": VERSION, "order": "deterministic", **identity, "layout": layout, "ranks": ranks}
    if mix:
        state["mix"] = list(mix)
    if growth is not None:
        state["growth"] = dict(growth)
    steps = _native.steps_per_epoch(json.dumps(layout))
    has_steps = steps is not None or layout.get("coordinated")
    if has_steps and start is not None and not _are_ranks_equal(start, ranks):
        # After resuming with a different number of ranks, ranks may be at different steps.
        if len(positions) < layout["streams"] and steps is not None and layout["streams"] % ranks == 0:
            positions = _positions_of_all_ranks(state, steps, start, positions)
        own = positions[0][0] % ranks if positions else 0
        return {**state, "batches": batches, **_explicit_positions(positions, layout, [rank for rank in range(ranks) if rank != own])}
    if layout.get("coordinated"):
        # Before a step, all slots are at the same row of their round.
        first = min((position[1:] for position in positions), default=(0, 0))
        ahead = [position[1:] for position in positions if position[1:] != first]
        row_ahead = list(ahead[0]) if ahead else list(first)
        return {**state, "batches": batches, "row": list(first), "row_ahead": row_ahead, "ahead": len(ahead)}
    if steps is None:
        return {**state, "batches": batches, **_explicit_positions(positions, layout, missing)}
    slot_steps = [steps_before(layout, steps, position) for position in positions]
    first_step = min(slot_steps, default=0)
    epoch, step = divmod(first_step, steps) if steps else (0, 0)
    return {**state, "epoch": epoch, "step": step, "ahead": sum(1 for slot_step in slot_steps if slot_step > first_step)}


def _explicit_positions(positions: Sequence[Position], layout: Mapping[str, Any], missing: Sequence[int]) -> dict[str, Any]:
    """Returns the keys of a state with the position of each slot."""
    if len(positions) == layout["streams"]:
        return {"places": pack_positions(positions)}
    return {"slots": {str(slot): [epoch, row] for slot, epoch, row in positions}, "missing": list(missing)}


def _are_ranks_equal(positions: Sequence[tuple[int, int]], ranks: int) -> bool:
    """Whether all ranks are at the same step. The first slots of each rank may be one step ahead of its other slots."""
    first = min(positions, default=(0, 0))
    ahead = sum(1 for position in positions[::ranks] if position != first)
    others = {position for position in positions if position != first}
    return len(others) < 2 and all((position != first) == (slot // ranks < ahead) for slot, position in enumerate(positions))


def _positions_of_all_ranks(state: dict[str, Any], steps: int, start: Sequence[tuple[int, int]], positions: Sequence[Position]) -> list[Position]:
    """Computes the positions of all slots if each rank has received the same number of batches since ``start``.

    A rank receives its next batch from the slot that is furthest behind.
    """
    layout, ranks = state["layout"], state["ranks"]
    start_steps = [steps_before(layout, steps, (slot, *position)) for slot, position in enumerate(start)]
    batches = sum(steps_before(layout, steps, position) - start_steps[position[0]] for position in positions)
    streams_at: dict[int, list[dict[str, int]]] = {}

    def position_at(slot: int, step: int) -> Position:
        if step not in streams_at:
            position = _native.position_at_step(json.dumps(layout), (state["pipeline"], state["dataset"]), 1, *divmod(step, steps), 0)
            streams_at[step] = json.loads(position)["streams"]
        return slot, streams_at[step][slot]["epoch"], streams_at[step][slot]["row"]

    result = []
    for rank in range(ranks):
        own = range(rank, len(start_steps), ranks)
        # The largest step that all slots of the rank can reach with this number of batches.
        level, above = min(start_steps[slot] for slot in own), batches + max(start_steps[slot] for slot in own) + 1
        while above - level > 1:
            middle = (level + above) // 2
            needed = sum(max(0, middle - start_steps[slot]) for slot in own)
            level, above = (middle, above) if needed <= batches else (level, middle)
        left = batches - sum(max(0, level - start_steps[slot]) for slot in own)
        for slot in own:
            step = max(level, start_steps[slot])
            if step == level and left > 0:
                step, left = step + 1, left - 1
            result.append(position_at(slot, step))
    return sorted(result)


def pack_positions(positions: Iterable[Position]) -> dict[str, Any]:
    """Encodes the positions of all slots compactly, as the first position and the row offset of each slot. A slot in a different epoch is encoded
    with its epoch and row."""
    pairs = [position[1:] for position in sorted(positions)]
    epoch, row = min(pairs)
    past = [slot_row - row if slot_epoch == epoch else [slot_epoch, slot_row] for slot_epoch, slot_row in pairs]
    return {"epoch": epoch, "row": row, "past": past}


def unpack_positions(packed: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Decodes the epoch and row of each slot."""
    epoch, row = packed["epoch"], packed["row"]
    return [(epoch, row + offset) if isinstance(offset, int) else (offset[0], offset[1]) for offset in packed["past"]]


def steps_before(layout: dict[str, Any], steps: int, position: Position) -> int:
    """Returns the number of steps of a slot before its position, over all epochs."""
    _, epoch, row = position
    return epoch * steps + -(-row // layout["batch_rows"])


def start_position(state: dict[str, Any]) -> dict[str, Any]:
    """Converts a state to the position from which the service resumes the job."""
    if "position" in state:
        return state["position"]
    layout, fingerprints = state["layout"], (state["pipeline"], state["dataset"])
    if "step" in state:
        position = _native.position_at_step(json.dumps(layout), fingerprints, state["ranks"], state["epoch"], state["step"], state["ahead"])
        return {**json.loads(position), **_content(state), "mix": state.get("mix", [])}
    if "row" in state:
        ranks, ahead = state["ranks"], state["ahead"]
        streams = [state["row_ahead"] if slot // ranks < ahead else state["row"] for slot in range(layout["streams"])]
        return _service_position(state, streams)
    if "places" in state:
        return _service_position(state, unpack_positions(state["places"]))
    slots = {int(slot): position for slot, position in state["slots"].items()}
    missing = [slot for slot in range(layout["streams"]) if slot not in slots]
    if missing:
        raise WrongUse(_incomplete_message(state, missing[0]))
    return _service_position(state, [slots[slot] for slot in range(layout["streams"])])


def start_position_with_default(state: dict[str, Any], default: tuple[int, int]) -> dict[str, Any]:
    """Like :func:`start_position`, but for a service with only one rank. Missing positions of other ranks' slots are set to ``default``."""
    if "slots" not in state:
        return start_position(state)
    slots = {int(slot): position for slot, position in state["slots"].items()}
    return _service_position(state, [slots.get(slot, default) for slot in range(state["layout"]["streams"])])


def _incomplete_message(state: Mapping[str, Any], slot: int) -> str:
    """Returns the error message for a state without the position of a slot."""
    missing = state.get("missing") or []
    if missing:
        ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        reason = f"{ranks} of {state['ranks']} did not report a position when the state was saved (ranks report through a common coordinator)"
    else:
        reason = f"the state contains only the positions of one rank of {state['ranks']}"
    return (
        f"the state has no position of slot {slot}: operators of this pipeline change the number of rows, and {reason}; "
        "merge the states of all ranks with feedline.merge_states([...])"
    )


def _service_position(state: Mapping[str, Any], streams: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {
        "version": 1,
        "pipeline": state["pipeline"],
        "dataset": state["dataset"],
        **_content(state),
        "order": "deterministic",
        "virtual_consumers": len(streams),
        "streams": [{"epoch": epoch, "row": row} for epoch, row in streams],
        "mix": state.get("mix", []),
        **({"growth": state["growth"]} if "growth" in state else {}),
        **({"split_rows": state["layout"]["split_rows"]} if state["layout"].get("indivisible") else {}),
    }


def _content(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content id of the data, and the offsets of topics. States of earlier releases have none."""
    return {key: state[key] for key in ("content", "ranges") if key in state}


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merges the states of all ranks of a job, taken at the same step.

    This function is needed only if operators change the number of rows (``filter``, ``on_error: skip``, ``remainder: carry``) and the ranks
    have no common coordinator or a state lists ranks as ``missing``. Otherwise, the state of any rank contains the positions of all ranks.
    Any number of ranks can load the result.

    Raises:
        WrongUse: if the states belong to different jobs, or the state of a rank is missing.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise WrongUse("merge_states requires a list of the states of all ranks; pass [state, ...]")
    given = [parse_state(state) for state in states]
    if not given:
        raise WrongUse("merge_states requires at least one state; pass the states of all ranks")
    first = given[0]
    for state in given[1:]:
        for key in ("pipeline", "dataset", "content", "layout", "ranks"):
            if state.get(key) != first.get(key):
                raise WrongUse(f"the states differ in {key!r}, so they belong to different jobs; pass the states of one checkpoint")
    if all("slots" not in state for state in given):
        return dict(first)
    slots: dict[str, tuple[int, int]] = {}
    for state in given:
        positions = state.get("slots") or {str(slot): position for slot, position in enumerate(unpack_positions(state["places"]))}
        for slot, position in positions.items():
            if slots.setdefault(slot, tuple(position)) != tuple(position):
                raise WrongUse(f"the states have different positions of slot {slot}; pass states of the same step")
    merged = {key: value for key, value in first.items() if key not in ("slots", "places", "missing")}
    if "growth" in first:
        merged["growth"] = _merge_growth([state["growth"] for state in given])
    start_position({"slots": slots, **merged})
    return {**merged, "places": pack_positions((int(slot), position[0], position[1]) for slot, position in slots.items())}


def _merge_growth(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the recorded segments of all ranks. Ranks that save their states later know more segments, and have forgotten earlier ones."""
    newest = max(parts, key=lambda part: part["rounds"])
    by_round = {segment["round"]: segment for part in parts for segment in part["segments"]}
    segments: list[Any] = []
    end = newest["rounds"]
    for first in sorted(by_round, reverse=True):
        segment = by_round[first]
        if first + segment["rounds"] == end:
            segments.insert(0, segment)
            end = first
    return {**newest, "segments": segments}


def validate_state(state: Any) -> dict[str, Any]:
    """Checks that this release can load a state. Returns the state as plain data.

    Raises:
        WrongUse: if the value is not a state, or is a state with a different version.
    """
    state = parse_state(state)
    if state["version"] != VERSION:
        raise WrongUse(
            f"the state has version {state['version']}, but this release reads version {VERSION}; load the state with the release that saved it"
        )
    try:
        start_position(state)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise WrongUse(f"invalid state ({type(error).__name__}: {error}); pass an unmodified result of state_dict()") from None
    return state


def parse_state(state: Any) -> dict[str, Any]:
    """Converts a state to plain data. Checkpoint libraries may return numbers as zero-dimensional arrays."""
    if not isinstance(state, Mapping) or "version" not in state or "pipeline" not in state:
        raise WrongUse(_NOT_A_STATE)
    return to_json_value(state, "state")


def check_pipeline(state: dict[str, Any], parts: dict[str, Any]) -> None:
    """Compares the pipeline of a state with the pipeline of the job.

    Raises:
        WrongUse: if the pipeline has changed. The message lists all changed parts.
    """
    saved = state.get("parts")
    if saved is None or saved == parts:
        return
    if not isinstance(saved, Mapping):
        raise WrongUse(_NOT_A_STATE)
    compared = ("source", "order", "on_error", "seed", "shuffle")
    changed = [name for name in compared if saved.get(name, parts[name]) != parts[name]]
    # Ignore caches, because they do not change rows.
    before, now = ([text for text in part["operators"] if not text.startswith("cache:")] for part in ({"operators": [], **saved}, parts))
    if [text.split(":")[0] for text in before] != [text.split(":")[0] for text in now]:
        names = ", ".join(text.split(":")[0] for text in before)
        changed.append(f"the list of operators (it was {names})")
    else:
        pairs = enumerate(zip(before, now, strict=True))
        changed += [f"operators[{index}] ({new.split(':')[0]})" for index, (old, new) in pairs if old != new]
    if changed:
        raise WrongUse(
            f"the state was saved with another pipeline: {' and '.join(changed)} changed; load the state with the pipeline with which it was saved, "
            "or continue with this one by accept_changed_pipeline=True"
        )


def data_summary(dataset: dict[str, Any]) -> dict[str, int]:
    """Returns the size of a dataset, which a state contains as information for users."""
    return {key: dataset[key] for key in ("rows", "shards", "bytes")}
