# SPDX-License-Identifier: Apache-2.0
"""`b200opt report` on logs written by hand: what it takes from which lines, and that nothing else counts."""
import json
import subprocess

import pytest

STEPS, STEP_NS = 20, 1_000_000


class Log:
    """One rank's log of STEPS steps of 1 ms, every fourth with its GEMMs timed: 800 us of GEMMs, 50 us idle."""

    def __init__(self, gpu="NVIDIA B200", rank=0):
        self.rank, self.gpu, self.more = rank, gpu, []
        self.step = {"alloc_calls": 0, "gemm_flops": 10**12, "hbm_used": 100}
        self.time = {"gemm_ns": 800_000, "blocked_ns": 0, "host_ns": 50_000, "start_ns": 10_000, "starved": 1}
        self.override = {}  # step: fields of its time line

    def lines(self):
        yield {"t": "header", "format": 1, "producer": "b200opt 0", "run": "r", "arm": "a", "host": "h", "pid": 1 + self.rank,
               "rank": self.rank, "world": 1, "unix_ns": 1, "gpu": self.gpu}
        for i in range(STEPS):
            t_ns = i * STEP_NS
            yield {"t": "step", "gen": 1, "step": i, "source": "gemm", "period": 3, "t_ns": t_ns, "dur_ns": STEP_NS, "gemm_calls": 3, **self.step}
            untimed = {"gemms": 0, "gemm_ns": -1, "host_ns": -1, "start_ns": -1, "starved": -1}
            timed = {"gemms": 3, **self.time}
            yield {"t": "time", "gen": 1, "step": i, "t_ns": t_ns, "dev_ns": STEP_NS, "blocked_ns": timed["blocked_ns"],
                   **(timed if i % 4 == 0 else untimed), **self.override.get(i, {})}
        yield from self.more
        yield {"t": "end", "t_ns": STEPS * STEP_NS}

    def gemm(self, m, n, k, calls=60, **fields):
        self.more.append({"t": "gemm", "api": "gemmex", "role": "fprop", "ta": "T", "tb": "N", "m": m, "n": n, "k": k, "batch": 1, "a": "bf16",
                          "b": "bf16", "d": "bf16", "compute": "f32", "epilogue": "none", "plan": "native", "calls": calls,
                          "flops": 2 * m * n * k * calls, **fields})


@pytest.fixture
def report(command, tmp_path):
    def run(*logs, text=False):
        for log in logs:
            (tmp_path / f"r{log.rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log.lines()))
        done = subprocess.run([command, "report", tmp_path, *(() if text else ("--json",))], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout if text else json.loads(done.stdout)["report"]["bottleneck"]

    return run


def evidence(bottleneck):
    return {row["name"]: row["value"] for row in bottleneck["evidence"]}


def test_steady_timed_steps_count(report):
    log = Log()
    log.override[0] = {"gemm_ns": 0, "host_ns": STEP_NS}  # the first step is no steady one
    log.override[4] = {"gemm_ns": 0, "host_ns": STEP_NS}  # nor one after an evaluation
    log.more.append({"t": "mark", "gen": 1, "step": 4, "what": "interrupted", "count": 1})
    found = report(log)
    assert found["verdict"] == "compute" and found["steps"] == 3  # 8, 12, 16
    assert found["shares"] == pytest.approx({"compute": 0.8, "communication": 0, "memory bandwidth": 0.15, "host": 0.04, "data": 0.01})


def test_ranks_are_added_up(report):
    one, other = Log(), Log(rank=1)
    other.time = {"gemm_ns": 0, "blocked_ns": 900_000, "host_ns": 0, "start_ns": 0, "starved": 0}
    found = report(one, other)
    assert found["verdict"] == "undetermined" and {found["first"], found["second"]} == {"communication", "compute"}
    assert found["steps"] == 8 and found["shares"]["communication"] == pytest.approx(0.45)


def test_rate_of_the_gemms_against_the_peak_of_their_format(report):
    log = Log()
    log.gemm(8192, 8192, 8192)
    # 1e12 FLOPs a step at 2.25 PFLOP/s are 444 us, of 800.
    assert evidence(report(log))["gemm_rate"] == pytest.approx(1e12 / 2.25e15 / 800e-6)
    log.more = []
    log.gemm(8192, 8192, 8192, plan="mxfp8")
    assert evidence(report(log))["gemm_rate"] == pytest.approx(1e12 / 4.5e15 / 800e-6)
    log.gemm(8192, 8192, 8192, calls=5, a="f32", b="f32", d="f32")  # 8 % of unknown rate
    assert "gemm_rate" not in evidence(report(log))
    log.more = []
    log.gemm(8192, 8192, 8192)
    log.gpu = "NVIDIA A100"
    assert "gemm_rate" not in evidence(report(log))


def test_thin_gemms_are_limited_by_memory(report):
    log = Log()
    log.gemm(8192, 64, 8192)
    found = report(log)
    assert found["verdict"] == "memory bandwidth" and "thin" in found["next"][0]


def test_launches_explain_a_gap_before_the_step(report):
    log = Log()
    log.time = dict(log.time, gemm_ns=200_000, host_ns=600_000, start_ns=600_000)
    assert report(log)["verdict"] == "data"
    log.more = [{"t": "call", "lib": "cudart", "name": name, "calls": 60 * STEPS, "errors": 0} for name in ("cudaLaunchKernel", "cudaLaunchKernelExC")]
    found = report(log)
    assert found["verdict"] == "host" and evidence(found)["launches_per_step"] == 120


def test_memory_under_pressure(report):
    log = Log()
    log.time = dict(log.time, gemm_ns=300_000, host_ns=600_000)
    assert report(log)["verdict"] == "host"
    log.more = [{"t": "oom", "owner": "pytorch", "bytes": 1, "t_ns": 1_500_000}]  # while the cache grows
    assert report(log)["verdict"] == "host"
    log.more = [{"t": "oom", "owner": "pytorch", "bytes": 1, "t_ns": 15_500_000}]
    found = report(log)
    assert found["verdict"] == "memory capacity" and evidence(found)["refused_per_step"] == pytest.approx(1 / 9)
    log.more = []
    log.step = dict(log.step, alloc_calls=2, hbm_used=900)
    assert report(log)["verdict"] == "host"  # nobody knows how much there is
    log.more = [{"t": "gpu", "t_ns": 1, "util_pct": -1, "mem_util_pct": -1, "mem_used": 500, "mem_total": 1000, "throttle": -1}]
    found = report(log)
    assert found["verdict"] == "memory capacity" and evidence(found)["hbm_peak_share"] == pytest.approx(0.9)


def test_samples_of_the_steady_steps_count(report):
    log = Log()
    for t_ns, util, throttle in ((0, 0, 0xff), (5_000_000, 90, 0x4), (6_000_000, 80, 0x1), (30_000_000, 0, 0)):
        log.more.append({"t": "gpu", "t_ns": t_ns, "util_pct": util, "mem_util_pct": 40, "mem_used": 1, "mem_total": 9, "throttle": throttle})
    found = report(log)
    assert evidence(found)["nvml_util"] == pytest.approx(0.85)
    assert evidence(found)["throttled_share"] == pytest.approx(0.5)  # 0x1 is an idle GPU
    assert "clocks" in found["next"][0]


def test_graphs_hide_what_they_hold(report):
    log = Log()
    log.time = dict(log.time, gemm_ns=100_000)
    assert report(log)["verdict"] == "memory bandwidth"
    log.more.append({"t": "graph", "launches": 20, "timed": 5, "dur_ns": 1})
    found = report(log)
    assert found["verdict"] == "undetermined" and "graphs" in found["why"]


def test_nothing_was_timed(report):
    log = Log()
    log.override = {i: {"gemms": 0} for i in range(STEPS)}
    found = report(log)
    assert found["verdict"] == "undetermined" and found["shares"] is None and "B200OPT_TIMING" in found["next"][0]


def test_text_names_it_near_the_top(report):
    lines = report(Log(), text=True).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("limited by"))
    assert lines[at] == "limited by compute: matrix multiplications take most of the device's time"
    assert at < next(i for i, line in enumerate(lines) if line.startswith("loss")) and all(len(line) <= 100 for line in lines)
