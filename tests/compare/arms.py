# SPDX-License-Identifier: Apache-2.0
"""Logs of made-up runs, in the form in which the library writes them, for the tests of what is made of them."""
import json
import math
import random


def losses(steps, seed, worse_percent=0.0, data=0):
    """A curve like a small GPT's: its noise is that of the data, and a little of the run's own."""
    noise, own = random.Random(f"data {data}"), random.Random(f"run {seed}")
    out = []
    for step in range(steps):
        level = 2.0 + 3.5 * math.exp(-step / 40) + 1.2 / (1 + step / 60)
        out.append(level * (1 + 0.03 * noise.gauss(0, 1)) * (1 + worse_percent / 100) * (1 + 0.0004 * own.gauss(0, 1)))
    return out


def write(folder, curve, step_ms=2.0, ranks=2, plan="native", config=None, node=True, name="run", owner="pytorch", reason="precision_native",
          versions=None, batch=1, world=None):
    """One run: a log for each rank, and of rank 0 the node's own count."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        jitter = random.Random(f"{rank} {step_ms}")
        header = {"t": "header", "format": 1, "producer": "b200opt 0.1.0", "run": name, "arm": name, "host": name, "pid": 100 + rank, "rank": rank,
                  "world": world or ranks, "local_rank": rank, "t_ns": 0, "unix_ns": 10**18, "versions": versions or {"cudart": 13020, "nccl": 23007},
                  "gpu": "NVIDIA B200", "config": config or {}, "nccl_env": {}}
        lines = [header, {"t": "timing", "mode": "on", "every": 16, "why": "default", "clock": "device", "clock_ns": -1}]
        at = 1_000_000
        flops = 6_000_000 * batch
        for step, loss in enumerate(curve):
            wall = int(step_ms * 1e6 * (60 + 10 * jitter.random() + (400 if step % 131 == 99 else 0)))
            device = int(step_ms * 1e6 * (1 + 0.02 * jitter.random()))
            lines.append({"t": "step", "gen": 1, "step": step, "source": "coll", "period": 4, "t_ns": at, "dur_ns": wall, "gemm_calls": 3, "gemm_flops": flops,
                          "coll_calls": 4, "coll_bytes": 4096, "alloc_calls": 0, "hbm": {}, "hbm_used": -1})
            timed = step % 16 == 0
            lines.append({"t": "time", "gen": 1, "step": step, "t_ns": at, "dev_ns": device, "colls": 4, "comm_ns": device // 4, "busy_ns": device // 4,
                          "blocked_ns": int(device * 0.1 * jitter.random()), "queued_ns": 0, "gemms": 3 if timed else 0,
                          "gemm_ns": device // 2 if timed else -1, "uncovered_ns": device // 8 if timed else -1, "host_ns": device // 20 if timed else -1,
                          "start_ns": 0 if timed else -1, "starved": 1 if timed else -1})
            if rank == 0:
                value = loss if math.isfinite(loss) else str(loss)
                lines.append({"t": "loss", "step": step, "loss": value, "tokens_per_s": 1e6 / step_ms, "t_ns": at + wall // 2, "grad_norm": 1.0 + 0.01 * jitter.random()})
            at += wall
        for role, (ta, tb) in {"fprop": "TN", "dgrad": "NN", "wgrad": "NT"}.items():
            lines.append({"t": "gemm", "api": "lt", "role": role, "ta": ta, "tb": tb, "m": 1024, "n": 4096 * batch, "k": 1024, "batch": 1, "a": "bf16", "b": "bf16",
                          "d": "bf16", "compute": "f32", "epilogue": "none", "plan": plan, "reason": reason, "wanted": plan, "calls": len(curve),
                          "flops": flops // 3 * len(curve), "model_native_ns": 1000, "model_narrow_ns": 700})
        if plan != "native":
            lines.append({"t": "audit", "role": "fprop", "ta": "T", "tb": "N", "m": 1024, "n": 4096 * batch, "k": 1024, "batch": 1, "plan": plan, "calls": 3, "error": 0.0379})
        for who, size in ((owner, 155189248 + 4096 * rank), ("nccl", 505413632 - 4096 * rank)):
            lines.append({"t": "alloc", "owner": who, "current": size, "peak": size, "allocs": 5, "frees": 0, "failed": 0})
        lines.append({"t": "end", "t_ns": at})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"vm-r{rank}-{100 + rank}.jsonl").write_text(text)
        if node:
            head = {**header, "producer": "vnode 0.1.0"}
            (folder / f"vm-r{rank}-{100 + rank}.node.jsonl").write_text(json.dumps(head) + "\n" + json.dumps({"t": "end", "t_ns": at}) + "\n")
    return folder
