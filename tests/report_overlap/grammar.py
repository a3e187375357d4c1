# SPDX-License-Identifier: Apache-2.0
"""Checks a file against the documented trace-event grammar ("Trace Event Format", JSON object form), as strictly as Perfetto's
importer reads it: types of every field, phases, names of metadata, and slices of a track that nest."""
import json

NUMBER = (int, float)
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
FIELDS = {
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "C": {"ph", "pid", "tid", "ts", "name", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
}


def no_constant(text):
    raise ValueError(f"{text} is no JSON")


def no_doubles(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), names
    return dict(pairs)


def number(value):
    return isinstance(value, NUMBER) and not isinstance(value, bool)


def check(path):
    """→ the events."""
    with open(path, encoding="ascii") as file:
        trace = json.load(file, parse_constant=no_constant, object_pairs_hook=no_doubles)
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    slices = {}
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert set(event) == FIELDS[phase], event
        assert all(isinstance(event[name], int) and 0 <= event[name] < 2**31 for name in ("pid", "tid")), event
        assert isinstance(event["name"], str) and event["name"] and isinstance(event["args"], dict), event
        if phase == "M":
            (key, value), = event["args"].items()
            assert METADATA[event["name"]] == key, event
            assert isinstance(value, str if key == "name" else int), event
            continue
        assert number(event["ts"]) and event["ts"] >= 0, event
        if phase == "C":  # counters hold numbers only
            assert event["args"] and all(number(value) for value in event["args"].values()), event
            continue
        assert number(event["dur"]) and event["dur"] >= 0 and isinstance(event["cat"], str), event
        slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
    for track, spans in slices.items():
        check_nesting(track, spans)
    return trace["traceEvents"]


def check_nesting(track, spans):
    """Slices of a track lie beside or inside one another; Perfetto drops what overlaps in part."""
    open_ends = []
    for start, minus in sorted(spans):
        end = round(start - minus, 3)
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], (track, start, end, open_ends[-1])
        open_ends.append(end)
