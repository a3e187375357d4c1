# SPDX-License-Identifier: Apache-2.0
"""A job on the virtual node (job.py) with metric lines, the Prometheus file and the optimizer hook: what is said is right, and
when it cannot be said the job is the same."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

BUILD = pathlib.Path(os.environ["B200_BUILD"])
NODE = BUILD / "vnode"
JOB = pathlib.Path(__file__).resolve().parent / "job.py"
STEPS = 30
LINE = re.compile(r"b200opt:( [a-z_]+=[-+.0-9e]+;)+")


class Run:
    def __init__(self, folder, steps, *words, closed=(), before=None, **variables):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
        preload = [BUILD / "libb200opt.so", *(NODE / name for name in ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1"))]
        env.update(LD_LIBRARY_PATH=str(NODE), LD_PRELOAD=":".join(map(str, preload)), B200OPT_LOG_DIR=str(folder), B200OPT_RUN="run",
                   B200OPT_METRICS_EVERY="5", PYTHONUNBUFFERED="")
        env["B200OPT_VNODE_SESSION"] = f"metrics-{os.getpid()}-{folder.parent.name}-{folder.name}"  # a node of its own
        env.update({name: str(value) for name, value in variables.items()})
        redirect = "".join(f" {descriptor}>&-" for descriptor in closed)
        command = ["sh", "-c", f'exec "$@"{redirect}', "sh", sys.executable, "-B", JOB, str(steps), *words]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120, preexec_fn=before)
        self.status, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr

    def lines(self):
        return [{k: float(v) for k, v in re.findall(r"(\w+)=(.*?);", m[0])} for m in LINE.finditer(self.stdout)]

    def own(self):
        """What the job itself printed."""
        return LINE.sub("", self.stdout).replace("\n\n", "\n").strip().splitlines()

    def records(self, kind):
        (log,) = self.folder.glob("run/*.jsonl")
        return [r for r in map(json.loads, log.read_text().splitlines()) if r["t"] == kind]

    def said(self):
        return [line for line in self.stderr.splitlines() if line.startswith("b200opt: ") and "metrics" in line]


def good(run, steps=STEPS):
    assert run.status == 0 and f"done {steps}" in run.stderr, run.stderr
    return run


def losses(steps=STEPS):
    return [f"step {i} loss {2 + 1 / (1 + i):.6f} tokens/s {1000 + i}" for i in range(steps)]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_tell_the_jobs_own_steps(tmp_path, unbuffered):
    run = good(Run(tmp_path, STEPS, "slow", B200OPT_METRICS="stdout", PYTHONUNBUFFERED=unbuffered))
    lines = run.lines()
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 25]
    for line in lines:
        # That of the step or, when the writer's thread was late, of the next one.
        assert line["loss"] in [pytest.approx(2 + 1 / (1 + line["step"] + late), abs=1e-6) for late in (0, 1)]
        assert line["tokens_per_s"] in (1000 + line["step"], 1001 + line["step"])
        assert 40 < line["step_ms"] < 5000 and line["hbm_used_gb"] > 0 and line["gemm_tflops"] > 0
    assert run.own() == losses()
    assert run.said() == []


def test_the_other_stream_and_the_other_ranks(tmp_path):
    run = good(Run(tmp_path / "stderr", STEPS, "slow", B200OPT_METRICS="stderr"))
    assert run.lines() == [] and len(LINE.findall(run.stderr)) == 5 and run.own() == losses()
    assert not LINE.search(good(Run(tmp_path / "rank", STEPS, "slow", B200OPT_METRICS="stdout", RANK="1", WORLD_SIZE="2")).stdout)
    assert len(Run(tmp_path / "zero", STEPS, "slow", B200OPT_METRICS="stdout", RANK="0", WORLD_SIZE="2").lines()) == 5
    assert not LINE.search(good(Run(tmp_path / "default", STEPS, "slow")).stdout)


def samples(path):
    return {s.name: s for family in text_string_to_metric_families(path.read_text()) for s in family.samples}


def test_the_prometheus_file(tmp_path):
    run = good(Run(tmp_path, STEPS, "slow", B200OPT_PROMETHEUS_FILE="job.prom", B200OPT_ARM='a "quoted\\ arm', RANK="3", WORLD_SIZE="4"))
    path = tmp_path / "job-r3.prom"
    families = list(text_string_to_metric_families(path.read_text()))
    found = samples(path)
    for family in families:
        assert family.documentation and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.labels == {"rank": "3", "run": "run", "arm": 'a "quoted\\ arm'}
            assert sample.name.endswith("_total") == (family.type == "counter")
    steps = run.records("step")
    assert found["b200opt_steps_total"].value == STEPS == len(steps)
    assert found["b200opt_step"].value == STEPS - 1
    assert found["b200opt_loss"].value == pytest.approx(2 + 1 / STEPS, abs=1e-6)
    # not of the last step, which ends with its last operation
    assert found["b200opt_step_duration_seconds"].value == pytest.approx(steps[-2]["dur_ns"] * 1e-9)
    assert found["b200opt_gemm_flops_total"].value == sum(r["gemm_flops"] for r in steps) == STEPS * 3 * 2 * 16**3
    assert found["b200opt_hbm_used_bytes"].value == steps[-1]["hbm_used"]
    assert [p.name for p in tmp_path.glob("*.prom*")] == ["job-r3.prom"], "no temporary file is left"


def test_promtool_accepts_the_file(tmp_path):
    promtool = shutil.which("promtool", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if not promtool:
        pytest.skip("promtool is neither installed nor in .venv (tools/setup --tests takes it from Debian's prometheus)")
    good(Run(tmp_path, STEPS, B200OPT_PROMETHEUS_FILE="job.prom"))
    done = subprocess.run([promtool, "check", "metrics"], stdin=(tmp_path / "job-r0.prom").open(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def small_disk(folder):
    """A file system with no room, or None where this machine lets nobody mount."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        return None
    (folder / "full").write_bytes(bytes(4096))
    return folder


def test_a_disk_that_is_full(tmp_path):
    disk = small_disk(tmp_path / "disk")
    if not disk:
        pytest.skip("no file system can be mounted here")
    try:
        run = good(Run(tmp_path / "run", STEPS, B200OPT_PROMETHEUS_FILE=disk / "job.prom"))
        assert run.own() == losses() and len(run.said()) == 1 and "errno 28" in run.said()[0]
        assert [p.name for p in disk.iterdir()] == ["full"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_files_that_may_not_grow(tmp_path):
    """As on a full disk, but the system sends a signal too."""
    run = good(Run(tmp_path, STEPS, "small", "slow", B200OPT_PROMETHEUS_FILE="job.prom"))
    assert run.own() == losses() and len(run.said()) == 1 and "errno 27" in run.said()[0]
    assert not list(tmp_path.glob("*.prom*"))


@pytest.mark.parametrize("path", ["/proc/no/such.prom", "/dev/null/x.prom", "no/folder/x.prom", "/" + "x" * 300 + ".prom"])
def test_a_file_that_cannot_be_made(tmp_path, path):
    run = good(Run(tmp_path, STEPS, "slow", B200OPT_PROMETHEUS_FILE=path))
    assert run.own() == losses() and len(run.said()) == 1, run.stderr


def test_a_stream_that_was_never_open(tmp_path):
    """Its number belongs to some file of the program."""
    run = good(Run(tmp_path, STEPS, "quiet", closed=(1,), B200OPT_METRICS="stdout"))
    assert len(run.said()) == 1 and "is closed" in run.said()[0]
    assert good(Run(tmp_path / "both", STEPS, "quiet", B200OPT_METRICS="stderr", closed=(1,))).said() == []


def test_a_stream_that_the_job_closes(tmp_path):
    run = good(Run(tmp_path, STEPS, "closed", "slow", B200OPT_METRICS="stdout", B200OPT_METRICS_EVERY="2"))
    assert (tmp_path / "own").read_bytes() == b"", "the job's own file under the stream's number"
    assert len(run.said()) == 1 and "errno 9" in run.said()[0]


def test_a_stream_that_refuses(tmp_path):
    run = Run(tmp_path, STEPS, "quiet", closed=(), B200OPT_METRICS="stdout", before=lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1))
    assert good(run).said() and len(run.said()) == 1 and "errno 28" in run.said()[0]


# --------------------------------------------------------------------------------------------------- the optimizer


def optimizer_marks(run):
    return {r["step"]: r["count"] for r in run.records("mark") if r["what"] == "optimizer"}


@pytest.mark.parametrize("words", [(), ("gil",), ("two",), ("two", "gil")])
def test_each_step_has_one_optimizer_step(tmp_path, words):
    run = good(Run(tmp_path, STEPS, *words, B200OPT_OPTIMIZER_HOOK=1))
    assert optimizer_marks(run) == dict.fromkeys(range(STEPS), 1)
    (confidence,) = run.records("confidence")
    assert confidence["sources"] == {"period": STEPS, "optimizer": STEPS, "printed": STEPS - 1}
    assert (confidence["agree"], confidence["asked"]) == (3, 3)
    assert [r["step"] for r in run.records("mark") if r["what"] == "first"] == [0]


def test_training_on_another_thread(tmp_path):
    """The main thread waits in C: it may register late, or never; nothing waits for it."""
    run = good(Run(tmp_path, STEPS, "thread", B200OPT_OPTIMIZER_HOOK=1))
    assert set(optimizer_marks(run).values()) <= {1}


@pytest.mark.parametrize("word, messages", [("notorch", 0), ("nohook", 1), ("badhook", 1)])
def test_no_hook_to_be_had(tmp_path, word, messages):
    run = good(Run(tmp_path, STEPS, word, B200OPT_OPTIMIZER_HOOK=1))
    assert run.stderr.count("B200OPT_OPTIMIZER_HOOK") == messages == len(run.records("warn"))
    assert "Traceback" not in run.stderr and run.own() == losses() and optimizer_marks(run) == {}


def test_the_hook_is_asked_for_only_when_told(tmp_path):
    run = good(Run(tmp_path, STEPS, "nohook"))
    assert run.stderr == f"done {STEPS}\n"
    (confidence,) = run.records("confidence")
    assert set(confidence["sources"]) == {"period", "printed"}
