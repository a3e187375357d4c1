# SPDX-License-Identifier: Apache-2.0
"""What a report says of made-up logs, beside what is true of them."""
import glob
import os

import pytest
from generate import FACTORS, Job, write

EXACT = dict(rel=1e-12)


def check_kinds(report, truth):
    rows = {(row["op"], row["dtype"], row["nranks"]): row for row in report["kinds"]}
    assert rows.keys() == truth["kinds"].keys()
    for key, kind in truth["kinds"].items():
        row, n = rows[key], key[2]
        assert row["calls"] == row["counted"] == kind["calls"]
        assert row["bytes"] == kind["bytes"]
        assert row["dur_s"] == pytest.approx(kind["dur_ns"] * 1e-9, **EXACT)
        assert row["mean_s"] == pytest.approx(kind["dur_ns"] * 1e-9 / kind["calls"], **EXACT)
        assert row["blocked_s"] == pytest.approx(kind["blocked_ns"] * 1e-9, **EXACT)
        assert row["hidden_pct"] == pytest.approx(100 * (1 - kind["blocked_ns"] / kind["dur_ns"]), rel=1e-9)
        assert row["algbw_gb_s"] == pytest.approx(kind["bytes"] / kind["dur_ns"], **EXACT)
        assert row["busbw_gb_s"] == pytest.approx(kind["bytes"] / kind["dur_ns"] * FACTORS[key[0]](n), **EXACT)


def check_matched(report, truth):
    for row in report["kinds"]:
        kind = truth["kinds"][row["op"], row["dtype"], row["nranks"]]
        matched = row["matched"]
        assert matched["operations"] == kind["operations"]
        assert matched["transfer_mean_s"] == pytest.approx(kind["transfer_ns"] * 1e-9 / kind["operations"], **EXACT)
        assert matched["wait_mean_s"] == pytest.approx(kind["wait_ns"] * 1e-9 / kind["parts"], **EXACT)


def check_late(report, truth, job):
    """Who comes last, where the difference is more than what the clocks can tell."""
    together = report["together"]
    assert together["compared"] == truth["compared"]
    first = together["stragglers"][0]
    assert first["rank"] == job.late_rank
    odd = [step for step in truth["steady"] if step % 2]
    assert first["last"] >= len(odd) * len(job.sequence)
    assert first["late_mean_s"] * 1e9 * first["last"] == pytest.approx(
        truth["last"][job.late_rank][1], abs=3 * job.end_noise_ns * first["last"] + job.jitter_ns * first["last"] * 0.1)
    for row in together["stragglers"][1:]:
        assert row["late_mean_s"] < 2 * job.jitter_ns * 1e-9


@pytest.mark.parametrize("seed", range(1, 6))
def test_everything_is_found(tmp_path, communication, seed):
    """Clocks hours apart that drift by up to 20 ppm, one rank that comes 300 us late in every second step."""
    job = Job(seed=seed, ranks=2 + seed, steps=40)
    truth = write(job, tmp_path)
    report = communication(tmp_path)
    assert report["timed"] and report["why_not"] is None and not report["modelled"]
    check_kinds(report, truth)
    check_matched(report, truth)
    check_late(report, truth, job)
    assert report["together"]["ranks_aligned"] == job.ranks
    assert report["together"]["partial"] == report["together"]["unlike"] == 0
    # What remains is the uncertainty of the ends, which the generator drew between 0 and end_noise_ns on each side.
    assert 0.3 * job.end_noise_ns < report["together"]["residual_p95_s"] * 1e9 < 2 * job.end_noise_ns
    assert report["missing"]["count"] == 0 and report["differing"] == []
    assert report["untimed"] == [{"why": "in_graph", "calls": 7 * job.ranks}]
    assert report["graphs"] == {"launches": 9 * job.ranks, "timed": 3 * job.ranks, "mean_s": pytest.approx(1e-3)}
    assert report["confidence"]["agree"] == 2 and report["confidence"]["sources"]["printed"] == job.steps - 1
    assert report["overhead"]["rank"] == 0 and report["overhead"]["pct"] == 0.5


def read_lines(folder, kind):
    import json
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        for text in open(path):
            fields = json.loads(text)
            if fields["t"] == kind:
                yield path, fields


def test_steps_are_means_of_ordinary_ones(tmp_path, communication):
    """The first step, and those that something came before, are left out; uncovered counts only where GEMMs were timed."""
    job = Job(interrupted=(7, 20, 33))
    truth = write(job, tmp_path)
    report = communication(tmp_path)["steady"]
    rows = [row for _, row in read_lines(tmp_path, "time") if row["step"] in truth["steady"]]
    assert report["steps"] == len(rows) == job.ranks * (job.steps - 4) and report["left_out"] == 4 * job.ranks
    total = {name: sum(row[name] for row in rows) for name in ("dev_ns", "comm_ns", "busy_ns", "blocked_ns", "queued_ns")}
    for name, key in (("dev_ns", "device_s"), ("comm_ns", "comm_s"), ("busy_ns", "busy_s"), ("blocked_ns", "blocked_s"),
                      ("queued_ns", "queued_s")):
        assert report[key] == pytest.approx(total[name] * 1e-9 / len(rows), **EXACT)
    assert report["ceiling"] == pytest.approx(total["dev_ns"] / (total["dev_ns"] - total["blocked_ns"]), **EXACT)
    with_gemms = [row for row in rows if row["gemms"]]
    assert report["gemm_steps"] == len(with_gemms) < len(rows)
    assert report["uncovered_s"] == pytest.approx(sum(row["uncovered_ns"] for row in with_gemms) * 1e-9 / len(with_gemms))
    devices = sorted(row["dev_ns"] for row in rows)
    assert report["device"]["median_s"] == pytest.approx(devices[-(-len(devices) // 2) - 1] * 1e-9, **EXACT)
    for row in report["ranks"]:
        own = [one for path, one in read_lines(tmp_path, "time") if f"-r{row['rank']:04d}-" in path and one["step"] in truth["steady"]]
        assert row["blocked_s"] == pytest.approx(sum(one["blocked_ns"] for one in own) * 1e-9 / len(own), **EXACT)


def test_communicators_of_some_ranks(tmp_path, communication):
    """Two dimensions: rows and columns of ranks; no collective has all ranks, and clocks are aligned by way of others."""
    rows, columns = [(0, 1, 2), (3, 4, 5), (6, 7, 8)], [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    job = Job(ranks=9, late_rank=5, comms=lambda index: columns if index % 2 else rows)
    truth = write(job, tmp_path)
    report = communication(tmp_path)
    check_kinds(report, truth)
    check_matched(report, truth)
    check_late(report, truth, job)
    assert report["together"]["ranks_aligned"] == 9


def test_ranks_in_a_chain(tmp_path, communication):
    """Each rank meets two others only, and the ones next to the first rank come last: clocks are aligned from one to the next."""
    pairs = [[(1, 2)], [(2, 3)], [(3, 4)], [(0, 4)]]
    job = Job(ranks=5, comms=lambda index: pairs[index])
    check_kinds(communication_of(job, tmp_path, communication), job.truth)


def communication_of(job, folder, communication):
    write(job, folder)
    report = communication(folder)
    assert report["together"]["ranks_aligned"] == job.ranks
    assert report["together"]["residual_p95_s"] * 1e9 < 2 * job.end_noise_ns
    return report


def test_no_lateness_from_clocks_that_do_not_fit(tmp_path, communication, b200opt):
    job = Job(end_noise_ns=200_000)
    truth = write(job, tmp_path)
    report = communication(tmp_path)
    assert report["together"]["residual_p95_s"] > 50e-6
    assert report["together"]["stragglers"] is None and report["together"]["compared"] == 0
    assert not any(row["last"] for row in report["together"]["ranks"])
    check_matched(report, truth)  # needs no clocks
    text = b200opt("report", tmp_path)
    assert "not said, as the ranks' clocks cannot be aligned to within 50 us" in text and "came last" not in text


def test_too_few_collectives_align_nothing(tmp_path, communication):
    write(Job(steps=3, sequence=("AllReduce",), interrupted=()), tmp_path)
    together = communication(tmp_path)["together"]
    assert together["residual_p95_s"] is None and together["stragglers"] is None and together["operations"] == 2


def test_only_kept_operations_count_as_matched(tmp_path, communication):
    """op lines are of some steps; the sums of coll_time lines are of all."""
    job = Job(steps=60, ops_of_steps=lambda step: step < 2 or step % 5 == 0)
    truth = write(job, tmp_path)
    report = communication(tmp_path)
    check_kinds(report, truth)
    check_matched(report, truth)


def test_a_rank_without_a_log(tmp_path, communication, b200opt):
    job = Job(ranks=5)
    write(job, tmp_path, missing=(3,))
    report = communication(tmp_path)
    assert report["missing"] == {"world": 5, "count": 1, "ranks": [3]}
    assert report["together"]["operations"] > 0 and report["together"]["stragglers"][0]["rank"] == job.late_rank
    assert "no log of 1 of 5 ranks: 3" in b200opt("report", tmp_path)


def test_one_log_says_nothing_of_others(tmp_path, communication):
    write(Job(), tmp_path, missing=(1, 2, 3))
    report = communication(tmp_path)
    assert report["together"] is None and report["timed"] and report["missing"]["ranks"] == [1, 2, 3]


def change(folder, rank, edit):
    """edit(lines) → lines of that rank's log."""
    path, = glob.glob(os.path.join(folder, f"*-r{rank:04d}-*.jsonl"))
    lines = edit(open(path).read().splitlines())
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")


def test_ranks_that_called_differently_often(tmp_path, communication, b200opt):
    job = Job()
    write(job, tmp_path)
    change(tmp_path, 1, lambda lines: lines[:-1] + [
        '{"t":"coll","op":"AllReduce","dtype":"f32","nranks":4,"calls":3,"bytes":0}', lines[-1]])
    row, = communication(tmp_path)["differing"]
    assert (row["op"], row["calls"], row["ranks"][1]) == ("AllReduce", [job.steps, job.steps + 3], 1)
    assert "AllReduce f32 x4: 40 calls on rank 0, 43 on rank 1" in b200opt("report", tmp_path)


def test_the_same_ordinal_of_different_collectives(tmp_path, communication):
    """A rank that left one out is shifted against the others: such operations are counted, not compared."""
    write(Job(sequence=("AllGather", "ReduceScatter"), interrupted=()), tmp_path)

    def shift(lines):
        import re
        return [re.sub(r'"seq":(\d+)', lambda found: f'"seq":{int(found[1]) + 1}', text) for text in lines]

    change(tmp_path, 2, shift)
    report = communication(tmp_path)["together"]
    assert report["unlike"] == 2 * 39 and report["operations"] == 0


@pytest.mark.parametrize("mode,why,text", [
    ("sampled", "max_connections", "one step of 16: CUDA_DEVICE_MAX_CONNECTIONS=1"),
    ("sampled", "overhead", "one step of 16: it cost more than B200OPT_OVERHEAD_MAX_PCT"),
    ("on", "default", "every step, its GEMMs in one of 16"),
])
def test_says_how_it_was_timed(tmp_path, b200opt, mode, why, text):
    write(Job(mode=mode, why=why, steps=4), tmp_path)
    assert f"timing    {text}" in b200opt("report", tmp_path)


@pytest.mark.parametrize("mode,why,text", [("off", "told", "B200OPT_TIMING=off"),
                                           ("off", "missing", "the driver lacks a function that it needs")])
def test_not_timed_is_never_zero(tmp_path, communication, b200opt, mode, why, text):
    write(Job(mode=mode, why=why), tmp_path)
    for rank in range(4):
        change(tmp_path, rank, lambda lines: [line for line in lines if not line.startswith(
            ('{"t":"op"', '{"t":"time"', '{"t":"coll_time"', '{"t":"graph"'))])
    report = communication(tmp_path)
    assert not report["timed"] and report["why_not"] == text
    assert report["kinds"] is None and report["steady"] is None and report["together"] is None
    assert f"not timed: {text}" in b200opt("report", tmp_path)


def test_times_of_the_node_are_modelled(tmp_path, communication, b200opt):
    write(Job(gpu="NVIDIA B200 (virtual)"), tmp_path)
    assert communication(tmp_path)["modelled"]
    assert "modelled, not measured" in b200opt("report", tmp_path)


def test_other_generations_are_left_out(tmp_path, communication):
    """A period that was taken for a step for a while has times of its own; they are not those of steps, nor are its
    collectives, which still say how the clocks differ."""
    write(Job(), tmp_path)
    before = communication(tmp_path)

    def add(lines):
        other = next(line for line in lines if '"t":"op"' in line and '"step":4' in line and "AllReduce" in line)
        return lines[:2] + ['{"t":"step","gen":0,"step":0,"source":"coll","period":1,"t_ns":1,"dur_ns":5,"coll_calls":1}'] + \
            lines[2:-1] + [other.replace('"gen":1', '"gen":0').replace('"comm":"c0-1-2-3"', '"comm":"x"'),
                           '{"t":"time","gen":0,"step":5,"t_ns":1,"dev_ns":77,"comm_ns":7,"busy_ns":7,"blocked_ns":7}', lines[-1]]

    for rank in range(4):
        change(tmp_path, rank, add)
    after = communication(tmp_path)
    assert after["steady"] == before["steady"] and after["kinds"] == before["kinds"]


def test_text(tmp_path, b200opt):
    """The whole text of a report; the numbers in it are those that the other tests check."""
    write(Job(ranks=4, steps=40, seed=7), tmp_path, missing=(1,))
    text = b200opt("report", tmp_path)
    path = os.path.join(os.path.dirname(__file__), "expected", "report.txt")
    section = text[text.index("Time of collectives"):text.index("Device memory by owner")]
    assert all(len(row) <= 100 for row in text.splitlines())
    if os.environ.get("B200_UPDATE"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as out:
            out.write(section)
    assert section == open(path).read()
