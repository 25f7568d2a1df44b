"""Where a job stands, as a training checkpoint stores it: small, readable JSON that says what it belongs to."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedline import _native
from feedline._native import WrongUse
from feedline._plain import plain

VERSION = 1
Place = tuple[int, int, int]
"""Slot, epoch and row in it."""


def parts_of(pipeline: dict[str, Any]) -> dict[str, Any]:
    """What is compared when a state is loaded: short hashes, so that the state stays small."""
    return {
        "source": _short(pipeline["source"]),
        "order": pipeline["order"],
        "on_error": pipeline["on_error"],
        "seed": pipeline["seed"],
        "shuffle": pipeline["shuffle"]["window"],
        "operators": [f"{name}:{_short(_of_rows(name, parameters))}" for operator in pipeline["operators"] for name, parameters in operator.items()],
    }


def _of_rows(name: str, parameters: Any) -> Any:
    """Of an operator what its rows depend on: not how a function is run, nor the bytes that a versioned one travels in."""
    if name not in ("map", "filter_function"):
        return parameters
    left_out = {"path", "environment", "timeout_s", "memory", "rows"} | ({"code"} if parameters.get("version") else set())
    return {key: value for key, value in parameters.items() if key not in left_out}


def _short(part: Any) -> str:
    return f"{zlib.crc32(json.dumps(_rows_of(part), sort_keys=True).encode()):08x}"


def _rows_of(part: Any) -> Any:
    """Of a part of a pipeline what its rows depend on."""
    if isinstance(part, dict):
        return {key: _rows_of(value) for key, value in part.items() if key not in ("parallelism", "credentials")}
    return [_rows_of(one) for one in part] if isinstance(part, list) else part


def build(
    *,
    about: dict[str, Any],
    layout: dict[str, Any],
    ranks: int,
    places: Sequence[Place],
    taken: int,
    missing: Sequence[int] = (),
    mix: Sequence[dict[str, Any]] = (),
    start: Sequence[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """The state of a deterministic job of which one rank stands at ``places``. Where only rows tell where others stand, these are all that is
    known, and ``missing`` are the ranks of which it is not. ``mix`` is how the weights of its mix change, and ``start`` where all slots stood at its beginning, where that was not the
    beginning of an epoch."""
    state = {"version": VERSION, "order": "deterministic", **about, "layout": layout, "ranks": ranks}
    if mix:
        state["mix"] = list(mix)
    steps = _native.steps_of_epoch(json.dumps(layout))
    is_known = steps is not None or layout.get("coordinated")
    if is_known and start is not None and not _is_even(start, ranks):
        # Ranks that began at the state of another number of ranks do not stand alike.
        state["batches"] = taken
        all_places = list(places)
        if len(places) < layout["streams"] and steps is not None and layout["streams"] % ranks == 0:
            all_places = _places_of_all(state, steps, start, places)
        if len(all_places) == layout["streams"]:
            state["places"] = packed(all_places)
        else:
            own = places[0][0] % ranks if places else 0
            state["slots"] = {str(slot): [epoch, row] for slot, epoch, row in places}
            state["missing"] = [rank for rank in range(ranks) if rank != own]
        return state
    if layout.get("coordinated"):
        # All slots stand at the same row of their round at the same step.
        state["batches"] = taken
        behind = min((place[1:] for place in places), default=(0, 0))
        ahead = [place[1:] for place in places if place[1:] != behind]
        state["row"] = list(behind)
        state["row_ahead"] = list(ahead[0]) if ahead else list(behind)
        state["ahead"] = len(ahead)
        return state
    if steps is None:
        state["batches"] = taken
        if len(places) == layout["streams"]:
            state["places"] = packed(places)
        else:
            state["slots"] = {str(slot): [epoch, row] for slot, epoch, row in places}
            state["missing"] = list(missing)
        return state
    stepped = [steps_before(layout, steps, place) for place in places]
    first = min(stepped, default=0)
    state["epoch"], state["step"] = divmod(first, steps) if steps else (0, 0)
    state["ahead"] = sum(1 for step in stepped if step > first)
    return state


def _is_even(stands: Sequence[tuple[int, int]], ranks: int) -> bool:
    """Whether all ranks stand alike: the first slots of each a step ahead of the others, or none."""
    first = min(stands, default=(0, 0))
    ahead = sum(1 for stand in stands[::ranks] if stand != first)
    others = {stand for stand in stands if stand != first}
    return len(others) < 2 and all((stand != first) == (slot // ranks < ahead) for slot, stand in enumerate(stands))


def _places_of_all(state: dict[str, Any], steps: int, start: Sequence[tuple[int, int]], places: Sequence[Place]) -> list[Place]:
    """Where all slots stand once every rank has had as many batches since the start as this one, each of the slot that was furthest behind."""
    layout, ranks = state["layout"], state["ranks"]
    begun = [steps_before(layout, steps, (slot, *stand)) for slot, stand in enumerate(start)]
    had = sum(steps_before(layout, steps, place) - begun[place[0]] for place in places)
    stands: dict[int, list[dict[str, int]]] = {}

    def at(slot: int, step: int) -> Place:
        if step not in stands:
            place = _native.place_of_step(json.dumps(layout), (state["pipeline"], state["dataset"]), 1, *divmod(step, steps), 0)
            stands[step] = json.loads(place)["streams"]
        return slot, stands[step][slot]["epoch"], stands[step][slot]["row"]

    found = []
    for rank in range(ranks):
        own = range(rank, len(begun), ranks)
        level, above = min(begun[slot] for slot in own), had + max(begun[slot] for slot in own) + 1
        while above - level > 1:
            middle = (level + above) // 2
            needed = sum(max(0, middle - begun[slot]) for slot in own)
            level, above = (middle, above) if needed <= had else (level, middle)
        left = had - sum(max(0, level - begun[slot]) for slot in own)
        for slot in own:
            stand = max(level, begun[slot])
            if stand == level and left > 0:
                stand, left = stand + 1, left - 1
            found.append(at(slot, stand))
    return sorted(found)


def packed(places: Iterable[Place]) -> dict[str, Any]:
    """Places of all slots in few characters: the first one in order, and how many rows past it each stands; a slot of another epoch
    has its epoch and row."""
    stands = [place[1:] for place in sorted(places)]
    epoch, row = min(stands)
    past = [at - row if of == epoch else [of, at] for of, at in stands]
    return {"epoch": epoch, "row": row, "past": past}


def unpacked(places: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The place of each slot, as epoch and row."""
    epoch, row = places["epoch"], places["row"]
    return [(epoch, row + one) if isinstance(one, int) else (one[0], one[1]) for one in places["past"]]


def steps_before(layout: dict[str, Any], steps: int, place: Place) -> int:
    """Steps of a slot before its place, over all epochs."""
    _, epoch, row = place
    return epoch * steps + -(-row // layout["batch_rows"])


def start_of(state: dict[str, Any]) -> dict[str, Any]:
    """The position that a job starts from to go on at ``state``."""
    if "position" in state:
        return state["position"]
    layout, fingerprints = state["layout"], (state["pipeline"], state["dataset"])
    if "step" in state:
        found = _native.place_of_step(
            json.dumps(layout), fingerprints, state["ranks"], state["epoch"], state["step"], state["ahead"]
        )
        return {**json.loads(found), "mix": state.get("mix", [])}
    if "row" in state:
        ranks, ahead = state["ranks"], state["ahead"]
        streams = [state["row_ahead"] if slot // ranks < ahead else state["row"] for slot in range(layout["streams"])]
        return _position(state, streams)
    if "places" in state:
        return _position(state, unpacked(state["places"]))
    slots = {int(slot): place for slot, place in state["slots"].items()}
    missing = [slot for slot in range(layout["streams"]) if slot not in slots]
    if missing:
        raise WrongUse(_lacks(state, missing[0]))
    return _position(state, [slots[slot] for slot in range(layout["streams"])])


def _lacks(state: Mapping[str, Any], slot: int) -> str:
    """Why a state is not enough to go on at."""
    silent = state.get("missing") or []
    if silent:
        who = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))}"
        why = f"nobody could tell where {who} of {state['ranks']} stood when it was saved (ranks tell each other through the coordinator that they share)"
    else:
        why = f"it is that of one rank of {state['ranks']}"
    return (
        f"the state does not say where slot {slot} stands, since operators of this pipeline change the number of rows and {why}; "
        "put the states of all ranks together with feedline.merge_states([...])"
    )


def _position(state: Mapping[str, Any], streams: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A position as the service reads it."""
    return {
        "version": 1,
        "pipeline": state["pipeline"],
        "dataset": state["dataset"],
        "order": "deterministic",
        "virtual_consumers": len(streams),
        "streams": [{"epoch": epoch, "row": row} for epoch, row in streams],
        "mix": state.get("mix", []),
    }


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One state of a job from the states of all its ranks, taken at the same step.

    Needed only where operators change the number of rows (``filter``, ``on_error: skip``, ``remainder: carry``) and the ranks share no
    coordinator, or a rank's state names others as ``missing``: elsewhere the state of any one rank tells where all of them stand. Any number of
    ranks may load the result.

    Raises:
        WrongUse: when the states are not those of one job, or a rank's is missing.
    """
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise WrongUse("merge_states takes the states of all ranks in a list; give [state, ...]")
    given = list(states)
    if not given:
        raise WrongUse("merge_states got no state; give those of all ranks")
    given = [check_kind(state) for state in given]
    first = given[0]
    for state in given[1:]:
        for key in ("pipeline", "dataset", "layout", "ranks"):
            if state.get(key) != first.get(key):
                raise WrongUse(f"the states differ in {key!r}, so they are not of the same job; give those of one checkpoint")
    if all("slots" not in state for state in given):
        return dict(first)
    slots: dict[str, tuple[int, int]] = {}
    for state in given:
        told = state.get("slots") or {str(slot): place for slot, place in enumerate(unpacked(state["places"]))}
        for slot, place in told.items():
            if slots.setdefault(slot, tuple(place)) != tuple(place):
                raise WrongUse(f"the states do not agree where slot {slot} stands; give those of one step")
    merged = {key: value for key, value in first.items() if key not in ("slots", "places", "missing")}
    whole = {"slots": slots, **merged}
    start_of(whole)
    return {**merged, "places": packed((int(slot), place[0], place[1]) for slot, place in slots.items())}


def check(state: Any) -> dict[str, Any]:
    """The state, if it is one that this release reads.

    Raises:
        WrongUse: with what is wrong and what to do.
    """
    state = check_kind(state)
    if state["version"] != VERSION:
        raise WrongUse(
            f"the state has version {state['version']}, this release reads version {VERSION}; load it with the release that made it"
        )
    try:
        start_of(state)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise WrongUse(f"this is no state of a job, or it was edited ({type(error).__name__}: {error}); give what state_dict() returned") from None
    return state


def check_kind(state: Any) -> dict[str, Any]:
    """Plain data, which looks like a state at all. Checkpoints of arrays give numbers back as arrays of none dimensions."""
    if not isinstance(state, Mapping) or "version" not in state or "pipeline" not in state:
        raise WrongUse("this is no state of a job; give what state_dict() returned")
    return plain(state, "state")


def start_or_later(state: dict[str, Any], missing_at: tuple[int, int]) -> dict[str, Any]:
    """As :func:`start_of`, for a service that this rank has alone: slots of other ranks stand anywhere."""
    if "slots" not in state:
        return start_of(state)
    slots = {int(slot): place for slot, place in state["slots"].items()}
    return _position(state, [slots.get(slot, missing_at) for slot in range(state["layout"]["streams"])])


def check_parts(state: dict[str, Any], parts: dict[str, Any]) -> None:
    """Compares the pipeline that a state was saved with to the present one, part by part.

    Raises:
        WrongUse: naming every part that changed.
    """
    saved = state.get("parts")
    if saved is None or saved == parts:
        return
    if not isinstance(saved, Mapping):
        raise WrongUse("this is no state of a job; give what state_dict() returned")
    compared = ("source", "order", "on_error", "seed", "shuffle")
    changed = [name for name in compared if saved.get(name, parts[name]) != parts[name]]
    # Whether and where rows are kept does not change them.
    before, now = ([text for text in of["operators"] if not text.startswith("cache:")] for of in ({"operators": [], **saved}, parts))
    if [text.split(":")[0] for text in before] != [text.split(":")[0] for text in now]:
        names = ", ".join(text.split(":")[0] for text in before)
        changed.append(f"the list of operators (it was {names})")
    else:
        changed += [
            f"operators[{place}] ({new.split(':')[0]})" for place, (old, new) in enumerate(zip(before, now, strict=True)) if old != new
        ]
    if changed:
        raise WrongUse(
            f"the state was saved with another pipeline: {' and '.join(changed)} changed; load it with the pipeline that it was saved with"
        )


def data_of(dataset: dict[str, Any]) -> dict[str, int]:
    """What a state says of its dataset, for people."""
    return {key: dataset[key] for key in ("rows", "shards", "bytes")}
