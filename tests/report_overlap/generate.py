# SPDX-License-Identifier: Apache-2.0
"""Writes the logs of a made-up job of which everything is known, and says what a report of them must find.

Ranks meet in collectives on true time: each comes when the table of lateness says, all leave when the last one has come and
the transfer is over (plus a small uncertainty of the end, as on real links). Each rank writes those times as its own clock
shows them: with an offset and a drift. The truth is computed here, from the same events, without any of the command's code.

    generate.py FOLDER [--ranks N] [--steps N] [--seed N]     as a program: for benchmarks
"""
import argparse
import json
import os
import random
import statistics
from dataclasses import dataclass, field

KINDS = {  # op: type, bytes per step and rank of a communicator of n, transfer in ns, blocked share of dur
    "AllGather": ("bf16", lambda n: 4_000_000 * n, 400_000, 0.25),
    "ReduceScatter": ("f32", lambda n: 8_000_000 * n, 600_000, 0.5),
    "AllReduce": ("f32", lambda n: 1_000_000, 50_000, 1.0),
}
FACTORS = {
    "AllReduce": lambda n: 2 * (n - 1) / n,
    "AllGather": lambda n: (n - 1) / n,
    "ReduceScatter": lambda n: (n - 1) / n,
    "AlltoAll": lambda n: (n - 1) / n,
}


@dataclass
class Job:
    ranks: int = 4
    steps: int = 40
    seed: int = 1
    sequence: tuple = ("AllGather", "AllGather", "ReduceScatter", "AllReduce")
    step_ns: int = 10_000_000
    late_rank: int = 2  # comes late_ns after the others in every second step
    late_ns: int = 300_000
    jitter_ns: int = 4_000  # of everybody's coming
    end_noise_ns: int = 1_000  # of everybody's leaving
    offset_ns: int = 5_000_000_000_000  # largest difference of clocks
    drift: float = 2e-5
    gemm_every: int = 4  # GEMMs are timed in one step of so many
    mode: str = "on"
    why: str = "default"
    every: int = 16
    comms: object = None  # step sequence index → list of tuples of ranks; default: all ranks in one
    gpu: str = "NVIDIA B200"
    shapes: int = 6  # of GEMMs
    ops_of_steps: object = None  # step → whether its op lines are kept; default all
    interrupted: tuple = (20,)
    truth: dict = field(default_factory=dict)


def line(out, **fields):
    out.append(json.dumps(fields, separators=(",", ":")))


def clock_of(job, rank, rng):
    if rank == 0:
        return 0, 0.0
    return rng.randrange(-job.offset_ns, job.offset_ns + 1), rng.uniform(-job.drift, job.drift)


def happen(job):
    """Every collective on true time: {(comm id, seq): {op, step, members, starts, ends, bytes, transfer}}, in order."""
    rng = random.Random(job.seed)
    members = job.comms or (lambda index: [tuple(range(job.ranks))])
    events, seqs = [], {}
    for step in range(job.steps):
        for index, op in enumerate(job.sequence):
            for group in members(index):
                n = len(group)
                comm = "c" + "-".join(map(str, group)) if n < 16 else f"c{group[0]}+{n}"
                at = 1_000_000_000 + step * job.step_ns + (index + 1) * job.step_ns // (len(job.sequence) + 2)
                starts = [at + rng.randrange(job.jitter_ns + 1) for _ in group]
                if job.late_rank in group and step % 2:
                    starts[group.index(job.late_rank)] += job.late_ns
                transfer = KINDS[op][2]
                over = max(starts) + transfer
                ends = [over + rng.randrange(job.end_noise_ns + 1) for _ in group]
                seq = seqs[comm] = seqs.get(comm, -1) + 1
                events.append(dict(op=op, step=step, comm=comm, seq=seq, members=group, starts=starts, ends=ends,
                                   bytes=KINDS[op][1](n)))
    return events


def logs_of(job):
    """{rank: lines}; fills job.truth."""
    rng = random.Random(job.seed + 1)
    clocks = [clock_of(job, rank, rng) for rank in range(job.ranks)]

    def shown(rank, t):
        offset, drift = clocks[rank]
        return t + offset + round(drift * t)

    events = happen(job)
    logs, ops_of = {}, {rank: {} for rank in range(job.ranks)}
    for event in events:
        for place, rank in enumerate(event["members"]):
            t = shown(rank, event["starts"][place])
            dur = shown(rank, event["ends"][place]) - t
            blocked = int(dur * KINDS[event["op"]][3])
            queued = 1000 * (event["step"] % 3)
            event.setdefault("durs", []).append(dur)
            event.setdefault("blocked", []).append(blocked)
            event.setdefault("queued", []).append(queued)
            ops_of[rank].setdefault(event["step"], []).append((event, place, t, dur, blocked, queued))
    kept = job.ops_of_steps or (lambda step: True)
    for rank in range(job.ranks):
        logs[rank] = rank_lines(job, rank, shown, ops_of[rank], kept)
    job.truth = truth_of(job, events, kept)
    return logs


def rank_lines(job, rank, shown, ops_of, kept):
    out, sums, comms = [], {}, {}
    start = shown(rank, 900_000_000)
    line(out, t="header", format=1, producer="b200opt 0.1.0", run="made-up", arm="default", host=f"node-{rank // 8}",
         pid=1000 + rank, rank=rank, world=job.ranks, local_rank=rank % 8, t_ns=start,
         unix_ns=1_760_000_000_000_000_000 + 900_000_000, versions={"driver": 13000}, gpu=job.gpu, config={}, nccl_env={})
    line(out, t="timing", mode=job.mode, every=job.every, why=job.why, clock="host", clock_ns=800)
    for step in range(job.steps):
        own = ops_of.get(step, [])
        for event, _, t, dur, blocked, queued in own:
            n = len(event["members"])
            dtype = KINDS[event["op"]][0]
            if event["comm"] not in comms:
                comms[event["comm"]] = True
                line(out, t="comm", id=event["comm"], nranks=n, rank=event["members"].index(rank), parent="")
            if kept(step):
                out.append(f'{{"t":"op","gen":1,"step":{step},"comm":"{event["comm"]}","seq":{event["seq"]},"group":1,'
                           f'"op":"{event["op"]}","dtype":"{dtype}","nranks":{n},"bytes":{event["bytes"]},"stream":1,'
                           f'"t_ns":{t},"dur_ns":{dur},"blocked_ns":{blocked},"queued_ns":{queued}}}')
            total = sums.setdefault((event["op"], dtype, n), [0] * 5)
            for place, value in enumerate((1, event["bytes"], dur, blocked, queued)):
                total[place] += value
        begin, end = (shown(rank, 1_000_000_000 + (step + more) * job.step_ns) for more in (0, 1))
        out.append(f'{{"t":"step","gen":1,"step":{step},"source":"coll","period":{len(own)},"t_ns":{begin},'
                   f'"dur_ns":{end - begin},"gemm_calls":12,"gemm_flops":1000000000,"coll_calls":{len(own)},'
                   f'"coll_bytes":{sum(op[0]["bytes"] for op in own)},"alloc_calls":0,'
                   f'"hbm":{{"pytorch":1073741824,"nccl":67108864}},"hbm_used":2147483648}}')
        gemms = step % job.gemm_every == 0
        comm_ns, blocked_ns, queued_ns = (sum(op[i] for op in own) for i in (3, 4, 5))
        extra = (12, 5_000_000, comm_ns // 2, 200_000, 100_000, 1) if gemms else (0, -1, -1, -1, -1, -1)
        out.append(f'{{"t":"time","gen":1,"step":{step},"t_ns":{begin},"dev_ns":{end - begin},"colls":{len(own)},'
                   f'"comm_ns":{comm_ns},"busy_ns":{comm_ns},"blocked_ns":{blocked_ns},"queued_ns":{queued_ns},'
                   f'"gemms":{extra[0]},"gemm_ns":{extra[1]},"uncovered_ns":{extra[2]},"host_ns":{extra[3]},'
                   f'"start_ns":{extra[4]},"starved":{extra[5]}}}')
        if step == 0 or step in job.interrupted:
            line(out, t="mark", gen=1, step=step, what="first" if step == 0 else "interrupted", count=1)
        if rank == 0:
            line(out, t="loss", step=step, loss=round(5 - step / job.steps, 4), tokens_per_s=0, t_ns=end)
        if step % 10 == 0:
            line(out, t="gpu", t_ns=begin, util_pct=90 + step % 3, mem_util_pct=40, mem_used=2147483648,
                 mem_total=206158430208, power_mw=700000, sm_mhz=1900, temp_c=60 + rank % 4, throttle=4 * (step == 10))
    for _ in range(2):
        for shape in range(job.shapes):
            line(out, t="gemm", api="lt", role=("fprop", "dgrad", "wgrad")[shape % 3], ta="T", tb="N", m=1024 + 8 * shape,
                 n=4096, k=2048, batch=1, a="bf16", b="bf16", d="bf16", compute="f32", epilogue="none", plan="native",
                 reason="observed", wanted="native", would_auto="mxfp8:converted", would_fp8="fp8:converted",
                 would_mxfp8="mxfp8:converted", calls=job.steps, flops=job.steps * 2**34, model_native_ns=job.steps * 10_000,
                 model_narrow_ns=job.steps * 6_000)
    for (op, dtype, n), total in sums.items():
        half = [value // 3 for value in total]  # counters are deltas: two lines of each
        for part in (half, [value - less for value, less in zip(total, half)]):
            line(out, t="coll", op=op, dtype=dtype, nranks=n, calls=part[0], bytes=part[1])
            line(out, t="coll_time", op=op, dtype=dtype, nranks=n, calls=part[0], bytes=part[1], dur_ns=part[2],
                 blocked_ns=part[3], queued_ns=part[4])
    line(out, t="untimed", why="in_graph", calls=7)
    line(out, t="graph", launches=9, timed=3, dur_ns=3_000_000)
    line(out, t="confidence", sources={"period": job.steps, "optimizer": job.steps, "printed": job.steps - 1}, agree=2, asked=3)
    line(out, t="overhead", steps=12, on_ns=10_050_000, off_ns=10_000_000, pct=0.5 - rank / 100, noise_pct=0.2)
    line(out, t="end", t_ns=shown(rank, 1_000_000_000 + job.steps * job.step_ns))
    return out


def truth_of(job, events, kept):
    steady = [step for step in range(1, job.steps) if step not in job.interrupted]
    kinds, peers, compared = {}, {rank: [0, 0] for rank in range(job.ranks)}, 0
    for event in events:
        n = len(event["members"])
        kind = kinds.setdefault((event["op"], KINDS[event["op"]][0], n),
                                dict(calls=0, bytes=0, dur_ns=0, blocked_ns=0, operations=0, transfer_ns=0, wait_ns=0, parts=0))
        kind["calls"] += n
        kind["bytes"] += n * event["bytes"]
        kind["dur_ns"] += sum(event["durs"])
        kind["blocked_ns"] += sum(event["blocked"])
        if event["step"] not in steady or not kept(event["step"]):
            continue
        least = min(event["durs"])
        kind["operations"] += 1
        kind["parts"] += n
        kind["transfer_ns"] += least
        kind["wait_ns"] += sum(event["durs"]) - n * least
        if n < 2:
            continue
        compared += 1
        last = event["members"][event["starts"].index(max(event["starts"]))]
        others = sorted(t for t, rank in zip(event["starts"], event["members"]) if rank != last)
        peers[last][0] += 1
        peers[last][1] += max(event["starts"]) - others[(len(others) - 1) // 2]
    return dict(kinds=kinds, steady=steady, last=peers, compared=compared)


def write(job, folder, missing=()):
    os.makedirs(folder, exist_ok=True)
    for rank, lines in logs_of(job).items():
        if rank not in missing:
            with open(os.path.join(folder, f"node-{rank // 8}-r{rank:04d}-{1000 + rank}.jsonl"), "w") as out:
                out.write("\n".join(lines) + "\n")
    return job.truth


def write_many(folder, ranks, steps, seed=1, shapes=200):
    """Logs of the same job at any size, in little memory: what happens is drawn anew for each rank from the same seeds."""
    os.makedirs(folder, exist_ok=True)
    job = Job(ranks=ranks, steps=steps, seed=seed, sequence=("AllGather", "ReduceScatter"), shapes=shapes)
    size = 0
    clocks = random.Random(seed + 1)
    comm = f"c0+{ranks}"
    last = []  # of each collective: when the last rank came
    jitter = random.Random(seed)
    for step in range(steps):
        for index, op in enumerate(job.sequence):
            at = 1_000_000_000 + step * job.step_ns + (index + 1) * job.step_ns // 4
            last.append((step, op, at, at + job.jitter_ns + (job.late_ns if step % 2 else 0)))
    for rank in range(ranks):
        offset, drift = clock_of(job, rank, clocks)
        own = {}
        for seq, (step, op, at, over) in enumerate(last):
            start = at + (jitter.randrange(job.jitter_ns) if rank else job.jitter_ns)
            if rank == job.late_rank and step % 2:
                start += job.late_ns
            end = over + KINDS[op][2] + jitter.randrange(job.end_noise_ns)
            t = start + offset + round(drift * start)
            dur = end + offset + round(drift * end) - t
            event = dict(op=op, comm=comm, seq=seq, members=range(ranks), bytes=KINDS[op][1](ranks))
            own.setdefault(step, []).append((event, rank, t, dur, dur // 4, 0))
        lines = rank_lines(job, rank, lambda _, t, o=offset, d=drift: t + o + round(d * t), own, lambda step: True)
        text = "\n".join(lines) + "\n"
        size += len(text)
        with open(os.path.join(folder, f"node-{rank // 8}-r{rank:04d}-{1000 + rank}.jsonl"), "w") as out:
            out.write(text)
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(write_many(given.folder, given.ranks, given.steps, given.seed), "bytes")
