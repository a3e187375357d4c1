# SPDX-License-Identifier: Apache-2.0
"""The library's log and the node's own ledger count exactly what the model's arithmetic says the job must do."""
import collections
import re

import oracle
import pytest

from conftest import ROOT
from matrix import COUNTED, DDP_NO_SYNC, RECOMPUTE, config_of, steps_of

COUNTERS = {"log": lambda run: run.logs(), "ledger": lambda run: run.ledgers()}
SHARDED = [job for job in COUNTED if job is not DDP_NO_SYNC]

every_counted_job = pytest.mark.parametrize("job", COUNTED, ids=lambda job: job.name)
every_counter = pytest.mark.parametrize("counter", COUNTERS)


def by_rank(lab, job, counter):
    records = COUNTERS[counter](lab.good(job, "observe"))
    assert sorted(records) == list(range(job.world))
    for lines in records.values():
        assert not [r for r in lines if r["t"] == "drop"], "something was not written"
    return records


def gemm_table(records):
    calls = collections.Counter()
    for r in records:
        if r["t"] == "gemm":
            calls[r["role"], r["m"], r["n"], r["k"], r["batch"]] += r["calls"]
    return calls


def collective_table(records):
    table = collections.defaultdict(lambda: [0, 0])
    for r in records:
        if r["t"] == "coll":
            table[r["op"], r["dtype"], r["nranks"]][0] += r["calls"]
            table[r["op"], r["dtype"], r["nranks"]][1] += r["bytes"]
    return {key: tuple(value) for key, value in table.items()}


def steps(records):
    """Steps of the generation that covers most operations, as the log's contract says."""
    covered = collections.Counter()
    for r in records:
        if r["t"] == "step":
            covered[r["gen"]] += r["period"]
    assert covered, "no step was found"
    best = covered.most_common(1)[0][0]
    return [r for r in records if r["t"] == "step" and r["gen"] == best]


@every_counter
@every_counted_job
def test_gemm_flops_are_the_models(lab, job, counter):
    expected = steps_of(job) * oracle.gemm_flops(config_of(job))
    for rank, records in by_rank(lab, job, counter).items():
        assert sum(r["flops"] for r in records if r["t"] == "gemm") == expected, f"rank {rank}"


@every_counter
@pytest.mark.parametrize("job", [job for job in COUNTED if job is not RECOMPUTE], ids=lambda job: job.name)
def test_gemm_calls_by_role_and_shape_are_the_models(lab, job, counter):
    expected = {key: calls * steps_of(job) for key, calls in oracle.gemms(config_of(job)).items()}
    for records in by_rank(lab, job, counter).values():
        assert gemm_table(records) == expected


@every_counter
@pytest.mark.parametrize("job", SHARDED, ids=lambda job: job.name)
def test_collectives_and_bytes_are_what_sharding_must_send(lab, job, counter):
    expected = {key: (calls * steps_of(job), size * steps_of(job)) for key, (calls, size) in oracle.collectives(config_of(job)).items()}
    for records in by_rank(lab, job, counter).values():
        assert collective_table(records) == expected


@every_counter
def test_ddp_reduces_every_gradient_once(lab, counter):
    config = config_of(DDP_NO_SYNC)
    for records in by_rank(lab, DDP_NO_SYNC, counter).values():
        calls, size = collective_table(records)["AllReduce", "f32", config.world]
        assert size == steps_of(DDP_NO_SYNC) * oracle.ddp_reduced_bytes(config)
        assert calls >= 2 * steps_of(DDP_NO_SYNC)


@every_counted_job
def test_each_step_counts_one_steps_work(lab, job):
    config = config_of(job)
    for records in by_rank(lab, job, "log").values():
        found = steps(records)
        # DDP forms its buckets anew after the first step, so its first steps may stay outside the pattern.
        assert steps_of(job) - (3 if job is DDP_NO_SYNC else 0) <= len(found) <= steps_of(job)
        assert [r["step"] for r in found] == list(range(len(found)))
        if job is DDP_NO_SYNC:
            found.pop()  # a DDP step begins with its first reduction, in backward: the last one has no forward pass after it
        assert {r["gemm_flops"] for r in found} == {oracle.gemm_flops(config)}
        if job is not DDP_NO_SYNC:
            one = oracle.collectives(config).values()
            assert {r["coll_calls"] for r in found} == {sum(calls for calls, _ in one)}
            assert {r["coll_bytes"] for r in found} == {sum(size for _, size in one)}


def context_bytes():
    """What a context takes of the device, from the node's own table of GPUs."""
    table = (ROOT / "tools" / "vnode" / "core" / "gpus.def").read_text()
    row = re.search(r"VNODE_GPU\(b200,.*?\.context_bytes = (\d+)ull << (\d+)", table, re.DOTALL)
    return int(row[1]) << int(row[2])


@every_counted_job
def test_memory_by_owner_explains_all_that_is_used_at_every_step(lab, job):
    for records in by_rank(lab, job, "log").values():
        found = steps(records)
        assert {r["hbm_used"] - sum(r["hbm"].values()) for r in found} == {context_bytes()}
        assert any(r["hbm"].get("pytorch", 0) > 0 for r in found)


@every_counted_job
def test_memory_by_owner_equals_the_nodes_ledger(lab, job):
    """Owners as the library finds them, by calling module, against what the node knows from inside each stand-in."""

    def totals(records):
        owners = collections.defaultdict(lambda: [0, 0, 0])
        for r in records:
            if r["t"] == "alloc":
                row = owners[r["owner"]]
                row[0] = max(row[0], r["peak"])
                row[1] += r["allocs"]
                row[2] += r["frees"]
        return {owner: tuple(row) for owner, row in owners.items() if any(row)}

    logs, ledgers = by_rank(lab, job, "log"), by_rank(lab, job, "ledger")
    for rank in range(job.world):
        assert totals(logs[rank]) == totals(ledgers[rank]), f"rank {rank}"


@every_counted_job
def test_losses_in_the_log_are_those_the_job_printed(lab, job):
    run = lab.good(job, "observe")
    printed = [float(v) for v in re.findall(r"^step \d+ loss (\S+)", run.stdout, re.MULTILINE)]
    logged = [r["loss"] for r in run.logs()[0] if r["t"] == "loss"]
    assert logged == printed and len(printed) == steps_of(job)
