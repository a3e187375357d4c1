# SPDX-License-Identifier: Apache-2.0
"""What the library's log says of a job's steps, held against what is known from elsewhere. Every function raises AssertionError; none
of them looks at anything but its arguments.

    truth    of one rank: {"optimizer": [{ns, id}], one per step() of each optimizer, "forward": [{ns, end_ns, node_ns}], one per forward
             pass in training that is not within another, node_ns by the node's clock at its start}
    lines    of one rank: the library's log, in order
"""
import collections
import itertools
import re

EVENT_NS = 1000  # cudaEventElapsedTime() gives a float of milliseconds
FACTORS = {  # nccl-tests, doc/PERFORMANCE.md
    "AllReduce": lambda n: 2 * (n - 1) / n,
    "AllGather": lambda n: (n - 1) / n,
    "ReduceScatter": lambda n: (n - 1) / n,
    "Broadcast": lambda n: 1,
    "Reduce": lambda n: 1,
}


def of_type(lines, kind):
    return [line for line in lines if line["t"] == kind]


def kept_steps(lines):
    """Steps of the generation that covers most operations, as a reader of the log keeps them."""
    covered = collections.Counter()
    for line in of_type(lines, "step"):
        covered[line["gen"]] += line["period"]
    assert covered, "no step was found"
    (gen, _), = covered.most_common(1)
    return [line for line in of_type(lines, "step") if line["gen"] == gen]


def first_forwards(truth):
    """Per step of the optimizers, the first forward pass that led to it."""
    per_step = len({row["id"] for row in truth["optimizer"]})
    ends = sorted(row["ns"] for row in truth["optimizer"])[per_step - 1 :: per_step]
    return [next(row for row in truth["forward"] if row["ns"] > before) for before in [0, *ends[:-1]]]


def boundaries(steps, truth, lost):
    """Each step holds exactly one step of each optimizer; all of those are found but the ones in `lost`, by number. Returns
    {number of the optimizer's step: step line}."""
    assert [s["step"] for s in steps] == list(range(len(steps))), "numbers are not 0, 1, 2, …"
    for one, other in itertools.pairwise(steps):
        assert one["t_ns"] + one["dur_ns"] <= other["t_ns"], f"steps {one['step']} and {other['step']} overlap"
    by_optimizer = collections.defaultdict(list)
    for row in truth["optimizer"]:
        by_optimizer[row["id"]].append(row["ns"])
    counts = {len(times) for times in by_optimizer.values()}
    assert len(counts) == 1, f"the optimizers stepped {counts} times"
    for times in by_optimizer.values():
        found = {}
        for step in steps:
            inside = [i for i, ns in enumerate(times) if step["t_ns"] <= ns < step["t_ns"] + step["dur_ns"]]
            assert len(inside) == 1, f"step {step['step']} holds the optimizer's steps {inside} of {len(times)}"
            found[inside[0]] = step
        missing = sorted(set(range(len(times))) - set(found))
        assert set(missing) <= set(lost), f"the optimizer's steps {missing} of {len(times)} were not found; {sorted(lost)} may be missing"
    return found


def begins(found, truth, ops, first_op):
    """A step of a sharded model begins in its first forward pass or before that, and with the collective that such a step begins with."""
    forwards = first_forwards(truth)
    for number, step in found.items():
        late = step["t_ns"] - forwards[number]["end_ns"]
        assert number == 0 or late < 0, f"step {step['step']} begins {late / 1e3:.1f} us after its first forward pass"
    by_step = collections.defaultdict(list)
    for op in ops:
        by_step[op["gen"], op["step"]].append(op)
    checked = 0
    for step in found.values():
        own = by_step.get((step["gen"], step["step"]))
        if own:
            first = min(own, key=lambda op: op["t_ns"])
            assert first["op"] == first_op, f"step {step['step']} begins with {first['op']}"
            checked += 1
    assert checked > 0, "no step has lines of its operations"


def marks(lines, found, interrupted):
    """The first step of a generation, and those before which something else was done: `interrupted`, by the optimizer's number."""
    gen = next(iter(found.values()))["gen"]
    said = collections.defaultdict(set)
    for line in of_type(lines, "mark"):
        if line["gen"] == gen:
            said[line["what"]].add(line["step"])
    assert said["first"] == {0}, said
    wanted = {found[number]["step"] for number in interrupted if number in found and found[number]["step"] > 0}
    assert said["interrupted"] == wanted, f"interrupted before steps {sorted(said['interrupted'])}, not {sorted(wanted)}"


def losses(lines, output, pattern):
    """Every loss that was printed is in the log, in order, with its step (by its place where the text has none)."""
    printed = []
    for match in re.finditer(pattern, output, re.MULTILINE):
        step = match.groupdict().get("step")
        printed.append((int(step) if step else len(printed), float(match["loss"])))
    logged = [(line["step"], line["loss"]) for line in of_type(lines, "loss")]
    assert logged == printed, f"logged {logged}, printed {printed}"
    return len(printed)


def flops(found, expected, last_is_short):
    last = max(found)
    for number, step in found.items():
        if number != last or not last_is_short:
            assert step["gemm_flops"] == expected, f"step {step['step']}: {step['gemm_flops']} FLOPs, not {expected}"


def sizes(found, ops, expected):
    """The operations of each step, one by one: {(op, type, ranks, bytes): how many}. Returns the number of steps looked at."""
    by_step = collections.defaultdict(collections.Counter)
    for op in ops:
        by_step[op["gen"], op["step"]][op["op"], op["dtype"], op["nranks"], op["bytes"]] += op["group"]
    looked_at = 0
    for step in found.values():
        own = by_step.get((step["gen"], step["step"]))
        if own:
            surplus, missing = sorted((own - expected).items()), sorted((expected - own).items())
            assert own == expected, f"step {step['step']}: {surplus} too many, {missing} missing"
            looked_at += 1
    return looked_at


def busbw(ops_by_rank, model_ns, launch_ns):
    """The shortest time of an operation among its ranks is the node's; what it may have over that is the launch, where the stream was
    idle. model_ns(op, nranks, bytes). Returns {(op, ranks, bytes): (operations, largest GB/s, the node's GB/s)}."""
    table = collections.defaultdict(list)
    for ops in ops_by_rank:
        for op in ops:
            if op["group"] == 1 and op["nranks"] > 1:
                table[op["comm"], op["seq"], op["op"], op["nranks"], op["bytes"]].append(op["dur_ns"])
    assert table, "no operation was written"
    found = collections.defaultdict(list)
    for (_, _, name, nranks, size), times in table.items():
        if len(times) == nranks:
            found[name, nranks, size].append(min(times))
    assert found, "no operation was written by all of its ranks"
    result = {}
    for (name, nranks, size), times in found.items():
        takes = model_ns(name, nranks, size)
        late = [ns - takes for ns in times]
        assert -EVENT_NS <= min(late) and max(late) <= launch_ns, f"{name} of {size} bytes takes {takes} ns; measured {sorted(times)}"
        scale = size * FACTORS[name](nranks)
        result[name, nranks, size] = (len(times), scale / min(times), scale / takes)
    return result


def aggregates(lines):
    """Per kind: what is timed and what is not is all that was called; the sums are those of the single lines where all were written."""
    called, timed, single = collections.Counter(), collections.Counter(), collections.Counter()
    sums, single_sums = collections.defaultdict(lambda: [0, 0, 0, 0]), collections.defaultdict(lambda: [0, 0, 0, 0])
    names = ("bytes", "dur_ns", "blocked_ns", "queued_ns")
    for line in of_type(lines, "coll"):
        called[line["op"], line["dtype"], line["nranks"]] += line["calls"]
    for line in of_type(lines, "coll_time"):
        kind = line["op"], line["dtype"], line["nranks"]
        timed[kind] += line["calls"]
        sums[kind] = [a + line[name] for a, name in zip(sums[kind], names)]
    for line in of_type(lines, "op"):
        kind = line["op"], line["dtype"], line["nranks"]
        single[kind] += line["group"]
        single_sums[kind] = [a + line[name] for a, name in zip(single_sums[kind], names)]
        assert 0 <= line["blocked_ns"] <= line["dur_ns"], line
    untimed = sum(line["calls"] for line in of_type(lines, "untimed"))
    assert sum(timed.values()) + untimed == sum(called.values()), f"{timed} timed, {untimed} untimed, of {called}"
    for kind, count in timed.items():
        assert single[kind] <= count <= called[kind], f"{kind}: {single[kind]} lines, {count} timed, {called[kind]} called"
        if single[kind] == count:
            assert sums[kind] == single_sums[kind], f"{kind}: {sums[kind]}, by its lines {single_sums[kind]}"


def times(lines, found, truth, interrupted, slack_ns):
    """Device times join the steps, leave no gap and do not overlap, and a step's is what the node's clock passed between their forward
    passes. Returns (steps, their device time, the node's)."""
    keys = {(s["gen"], s["step"]): number for number, s in found.items()}
    all_keys = {(s["gen"], s["step"]) for s in of_type(lines, "step")}
    timed = of_type(lines, "time")
    assert all((t["gen"], t["step"]) in all_keys for t in timed), "a time without its step"
    timed = sorted((t for t in timed if (t["gen"], t["step"]) in keys), key=lambda t: t["step"])
    assert len({t["step"] for t in timed}) == len(timed), "a step has two times"
    for t in timed:
        assert 0 <= t["blocked_ns"] <= min(t["busy_ns"], t["dev_ns"]) and t["busy_ns"] <= min(t["comm_ns"], t["dev_ns"]), t
        if t["gemms"]:
            assert 0 <= t["uncovered_ns"] <= t["busy_ns"] and 0 < t["gemm_ns"] <= t["dev_ns"], t
            assert t["busy_ns"] - t["uncovered_ns"] <= t["gemm_ns"], t
            assert 0 <= t["start_ns"] <= t["host_ns"] <= t["dev_ns"] - t["blocked_ns"], t
    passed = [row["node_ns"] for row in first_forwards(truth)]
    steps, device_ns, node_ns = 0, 0, 0
    for one, other in itertools.pairwise(timed[1:]):  # in the first one some of its GEMMs were not timed: it took less
        number = keys[one["gen"], one["step"]]
        if other["step"] != one["step"] + 1 or number + 1 in interrupted:
            continue
        end = one["t_ns"] + one["dev_ns"]
        assert end == other["t_ns"], f"step {one['step']} ends at {end}, the next begins at {other['t_ns']}"
        steps, device_ns, node_ns = steps + 1, device_ns + one["dev_ns"], node_ns + passed[number + 1] - passed[number]
    if steps:
        off = abs(device_ns - node_ns)
        assert off <= steps * slack_ns, f"{steps} steps took {device_ns} ns on the device, {node_ns} ns by the node's clock"
    return steps, device_ns, node_ns


def confidence(lines, found, truth):
    said = of_type(lines, "confidence")
    assert said, "no confidence line"
    for line in said:
        assert line["agree"] == line["asked"] >= 2, line
    counted = sum(line["sources"].get("optimizer", 0) for line in said)
    inside = [s for s in of_type(lines, "mark") if s["what"] == "optimizer" and s["gen"] == next(iter(found.values()))["gen"]]
    assert {m["count"] for m in inside} == {1} and counted >= len(inside), said
    assert {m["step"] for m in inside} >= {s["step"] for s in found.values() if s["step"] > 0}, "a step without the optimizer's mark"
