# SPDX-License-Identifier: Apache-2.0
"""The timeline: its grammar, and that the events of all ranks lie where they happened."""
import json
import os

import grammar
import pytest
from generate import Job, happen, write

# PyPI's perfetto downloads its trace processor when it is first used, which a test must not; hence grammar.py.


@pytest.fixture
def trace(tmp_path, b200opt):
    def run(job, **options):
        write(job, tmp_path / "logs", **options)
        assert b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json") == ""
        return grammar.check(tmp_path / "trace.json")

    return run


def test_events_are_where_they_happened(trace, b200opt):
    """Every collective of every rank to within what the ends are uncertain by, though clocks are hours apart."""
    job = Job(ranks=5)
    events = trace(job)
    assert "5 ranks, 5 of them aligned by collectives to within" in b200opt.stderr
    slices = {(event["args"]["seq"], event["pid"]): event for event in events if event.get("cat") == "collective"}
    truth = happen(job)
    assert len(slices) == len(truth) * job.ranks
    zero = slices[0, 0]["ts"] * 1000 - truth[0]["starts"][0]
    for event in truth:
        for place, rank in enumerate(event["members"]):
            found = slices[event["seq"], rank]
            assert found["name"] == event["op"] and found["args"]["step"] == event["step"]
            assert found["ts"] * 1000 - zero == pytest.approx(event["starts"][place], abs=3 * job.end_noise_ns)
            assert found["dur"] * 1000 == pytest.approx(event["ends"][place] - event["starts"][place], abs=0.01 * job.step_ns)


def test_processes_tracks_and_counters(trace):
    job = Job(ranks=3)
    events = trace(job)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"].endswith("s_name")
             or event["name"] == "thread_name"}
    assert [names[rank, 0] for rank in range(3)] == [f"rank {rank} on node-0" for rank in range(3)]
    tracks = {names[event["pid"], event["tid"]] for event in events if event["ph"] == "X"}
    assert tracks == {"steps, host", "steps, device", "stream 1, collectives"}
    for rank in range(3):
        steps = [event for event in events if event.get("cat") == "step" and event["pid"] == rank]
        assert len(steps) == 2 * job.steps
    losses = [event["args"]["value"] for event in events if event["name"] == "loss"]
    assert len(losses) == job.steps and losses[0] == 5 and losses[-1] == round(5 - 39 / 40, 4)
    memory = [event["args"] for event in events if event["name"] == "device memory"]
    assert len(memory) == 3 * job.steps and memory[0]["nccl"] == 67108864
    assert {event["args"]["value"] for event in events if event["name"] == "GPU power W"} == {700}


def test_a_device_clock_of_its_own(tmp_path, b200opt):
    """Where device times cannot be compared with the host's, the device's steps are put where the host began them."""
    write(Job(ranks=2), tmp_path / "logs")
    for name in os.listdir(tmp_path / "logs"):
        path = tmp_path / "logs" / name
        lines = []
        for text in open(path):
            fields = json.loads(text)
            if fields["t"] == "timing":
                fields.update(clock="device", clock_ns=-1)
            if fields["t"] in ("op", "time"):
                fields["t_ns"] += 77_000_000_000_000
            lines.append(json.dumps(fields))
        path.write_text("\n".join(lines) + "\n")
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    steps = {}
    for event in grammar.check(tmp_path / "trace.json"):
        if event.get("cat") == "step":
            steps.setdefault((event["pid"], event["name"]), []).append(event["ts"])
    assert len(steps) == 80 and all(abs(host - device) < 1 for host, device in steps.values())


def test_without_collectives_hosts_say_when(tmp_path, b200opt):
    write(Job(ranks=2, steps=3, sequence=("AllReduce",), interrupted=()), tmp_path / "logs")
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert "too few collectives to align the clocks by" in b200opt.stderr
    first = {}
    for event in grammar.check(tmp_path / "trace.json"):
        if event["name"] == "AllReduce":
            first.setdefault(event["pid"], event["ts"])
    assert abs(first[0] - first[1]) < 20  # the generator's hosts agree on the time of day, up to drift and jitter


def test_logs_without_times(tmp_path, b200opt):
    """A log from before timing has steps and losses only."""
    logs = os.path.join(os.path.dirname(__file__), "..", "golden", "format1", "preloaded")
    b200opt("trace", logs, "-o", tmp_path / "trace.json")
    events = grammar.check(tmp_path / "trace.json")
    assert {event["name"] for event in events if event["ph"] == "C"} == {"loss", "device memory"}


def test_virtual_nodes_have_two_times(tmp_path, b200opt):
    write(Job(ranks=2, steps=5), tmp_path / "logs")
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert "virtual" not in b200opt.stderr and "modelled" not in (tmp_path / "trace.json").read_text()
    for path in (tmp_path / "logs").rglob("*.jsonl"):
        path.write_text(path.read_text().replace('"t":"header",', '"t":"header","virtual_node":1,', 1).replace('"t": "header",', '"t": "header","virtual_node":1,', 1))
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert "of the virtual node: the device's times are modelled" in b200opt.stderr
    names = {event["args"]["name"] for event in grammar.check(tmp_path / "trace.json") if event["name"] == "thread_name"}
    assert {"steps, host (plays the node)", "steps, device (modelled)"} <= names, names


def test_slices_that_touch(tmp_path, b200opt):
    """Times are exact to half a microsecond: what then seems to overlap with its predecessor on the stream is cut."""
    write(Job(ranks=1, steps=5, late_rank=-1), tmp_path / "logs")
    path, = (tmp_path / "logs").iterdir()
    out, last = [], 0
    for text in path.read_text().splitlines():
        fields = json.loads(text)
        if fields["t"] == "op":
            fields["t_ns"] = last - 400 if last and fields["seq"] % 2 else fields["t_ns"]
            last = fields["t_ns"] + fields["dur_ns"]
        out.append(json.dumps(fields))
    path.write_text("\n".join(out) + "\n")
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert sum(event.get("cat") == "collective" for event in grammar.check(tmp_path / "trace.json")) == 20


def test_a_loss_that_is_no_number(tmp_path, b200opt):
    write(Job(ranks=1, steps=5, late_rank=-1), tmp_path / "logs")
    path, = (tmp_path / "logs").iterdir()
    path.write_text(path.read_text().replace('"loss":4.8', '"loss":"nan"'))
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert len([event for event in grammar.check(tmp_path / "trace.json") if event["name"] == "loss"]) == 4


def test_standard_output_and_full_disks(tmp_path, b200opt):
    write(Job(ranks=2, steps=5), tmp_path / "logs")
    text = b200opt("trace", tmp_path / "logs")
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "trace.json")
    assert text == (tmp_path / "trace.json").read_text()
    b200opt("trace", tmp_path / "logs", "-o", "/dev/full", status=3)
    assert b200opt.stderr == "b200opt: trace: cannot write '/dev/full': No space left on device\n"
    b200opt("trace", tmp_path / "logs", "-o", tmp_path / "no" / "trace.json", status=3)
    assert b200opt.stderr.endswith("No such file or directory\n")


@pytest.mark.parametrize("events,fault", [
    ([{"ph": "X", "pid": 0, "tid": 1, "ts": 0, "dur": 5, "name": "a", "cat": "c", "args": {}},
      {"ph": "X", "pid": 0, "tid": 1, "ts": 3, "dur": 5, "name": "b", "cat": "c", "args": {}}], "overlap in part"),
    ([{"ph": "X", "pid": 0, "tid": 1, "ts": -1, "dur": 5, "name": "a", "cat": "c", "args": {}}], "before the beginning"),
    ([{"ph": "C", "pid": 0, "tid": 0, "ts": 1, "name": "a", "args": {"value": "1"}}], "a counter that is a text"),
    ([{"ph": "M", "pid": 0, "tid": 0, "name": "proces_name", "args": {"name": "1"}}], "unknown metadata"),
])
def test_the_grammar_refuses(tmp_path, events, fault):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ms", "otherData": {}, "traceEvents": events}))
    with pytest.raises((AssertionError, KeyError)):
        grammar.check(path)
