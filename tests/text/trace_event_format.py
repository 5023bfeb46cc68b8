"""What the document "Trace Event Format" asks of a file, as far as it says so: a validator for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

METADATA = {
    "process_name": ("name", str), "process_labels": ("labels", str), "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip
"""Metadata events: the argument that each has, and its type."""
ALLOWED = {
    "X": {"dur", "tdur", "tts", "sf", "esf", "cname"}, "M": set(), "C": {"id"}, "i": {"s", "cname"},
    "b": {"id", "id2", "scope"}, "e": {"id", "id2", "scope"}, "n": {"id", "id2", "scope"},
}  # fmt: skip
"""Phase -> keys besides those that all have."""
EVERYWHERE = {"name", "cat", "ph", "ts", "pid", "tid", "args"}


class InvalidTrace(AssertionError):
    """What is wrong, and with which event."""


def require_valid(document: Any) -> None:
    """Raises `InvalidTrace` where a document breaks a rule of the format."""
    _require(isinstance(document, dict) and isinstance(document.get("traceEvents"), list), "no traceEvents", None)
    _require(document.get("displayTimeUnit", "ms") in ("ms", "ns"), "displayTimeUnit is ms or ns", None)
    events = document["traceEvents"]
    for event in events:
        _require_fields(event)
    _require_names(events)
    _require_nesting(events)
    _require_pairs(events)


def _require(holds: bool, rule: str, event: Any) -> None:
    if not holds:
        raise InvalidTrace(f"{rule}: {event!r:.300}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value == value


def _require_fields(event: Any) -> None:
    _require(isinstance(event, dict) and isinstance(event.get("ph"), str), "an event is an object with a phase", event)
    phase = event["ph"]
    _require(phase in ALLOWED, "a known phase", event)
    _require(set(event) <= EVERYWHERE | ALLOWED[phase], "no other keys", event)
    _require(isinstance(event.get("name"), str) and event["name"] != "", "a name", event)
    _require(type(event.get("pid")) is int and type(event.get("tid")) is int, "whole numbers for pid and tid", event)
    _require(isinstance(event.get("args", {}), dict), "args are an object", event)
    _require(isinstance(event.get("cat", ""), str), "categories are text", event)
    if phase == "M":
        key, kind = METADATA[event["name"]]
        _require(type(event.get("args", {}).get(key)) is kind, f"metadata has {key}", event)
        return
    _require(_is_number(event.get("ts")) and event["ts"] >= 0, "a time that is not negative", event)
    if phase == "X":
        _require(_is_number(event.get("dur")) and event["dur"] >= 0, "a duration that is not negative", event)
    if phase == "C":
        values = event.get("args", {}).values()
        _require(len(values) > 0 and all(_is_number(value) for value in values), "counters are numbers", event)
    if phase == "i":
        _require(event.get("s", "t") in ("g", "p", "t"), "the scope of an instant is g, p or t", event)
    if phase in "ben":
        _require("cat" in event, "an asynchronous event has a category", event)
        _require(("id" in event) != ("id2" in event), "an asynchronous event has an id or an id2", event)
        if "id2" in event:
            _require(
                len(event["id2"]) == 1 and set(event["id2"]) <= {"local", "global"}, "id2 is local or global", event
            )


def _require_names(events: Iterable[dict[str, Any]]) -> None:
    """Each track that has events has a name, once."""
    names = [(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    processes = [e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    _require(len(set(names)) == len(names) and len(set(processes)) == len(processes), "one name each", names)
    for event in events:
        if event["ph"] != "M":
            _require(event["pid"] in processes, "a process with a name", event)
            _require((event["pid"], event["tid"]) in set(names), "a thread with a name", event)
    texts = [(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    _require(len(set(texts)) == len(texts), "names that tell threads apart", texts)


def _require_nesting(events: Iterable[dict[str, Any]]) -> None:
    """Complete events of one thread lie within each other or apart."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        around: list[float] = []
        for begin, end in sorted(track, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            _require(not around or end <= around[-1], "complete events nest", (begin, end))
            around.append(end)


def _require_pairs(events: Iterable[dict[str, Any]]) -> None:
    """An asynchronous event has a beginning and an end with the same category and id, of its process if it is local."""
    ends: dict[Any, dict[str, Any]] = {}
    begins: dict[Any, dict[str, Any]] = {}
    for event in events:
        if event["ph"] in "be":
            local = event.get("id2", {}).get("local")
            key = event["cat"], event["pid"] if local else None, local or event.get("id") or event["id2"]["global"]
            place = begins if event["ph"] == "b" else ends
            _require(key not in place, "an id is used once", event)
            place[key] = event
    _require(begins.keys() == ends.keys(), "each beginning has its end", begins.keys() ^ ends.keys())
    for key, begin in begins.items():
        _require(begin["ts"] <= ends[key]["ts"] and begin["name"] == ends[key]["name"], "ends later", begin)
