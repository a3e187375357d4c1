# SPDX-License-Identifier: Apache-2.0
"""Runs real training jobs in several arms, each once per session, and hands their results to the tests.

Arms of a job:
  bare     on the virtual node, nothing of libb200opt.so
  off      preloaded, B200OPT=off
  observe  preloaded, environment unset: what a user gets
  deferred, adversarial-SEED    as observe, in that order of the virtual node
  fp8, mxfp8, auto    GEMMs converted wherever it is possible; also fp8-deferred, fp8-adversarial-SEED, ...
  cpu      the same script with --device cpu and gloo, no virtual node at all

Options come from the build (tests/e2e/CMakeLists.txt):
  --b200opt PATH   the command under test
"""
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import typing

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
JOB_LIMIT_S = 300
PRECISIONS = ("fp8", "mxfp8", "auto")
SKIP_STATUS = 77  # ctest's SKIP_RETURN_CODE: a run in which something was skipped shows as skipped, not as passed


def pytest_addoption(parser):
    parser.addoption("--b200opt", type=pathlib.Path, default=ROOT / "build" / "release" / "b200opt", help="the command under test")
    parser.addoption("--long", action="store_true", help="also run the tests marked long")
    parser.addoption("--brief", action="store_true", help="only the clients of matrix.BRIEF, for one more PyTorch")
    parser.addoption("--timings", type=pathlib.Path, help="write each job's wall time and speed to this JSON file")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: too slow for every run; selected by --long")
    # Only the children may run under the preloaded library or see variables of the caller's own experiments.
    for name in list(os.environ):
        if name.startswith(("B200OPT", "LD_PRELOAD", "NCCL_", "TORCH_")):
            del os.environ[name]


def pytest_collection_modifyitems(config, items):
    from matrix import BRIEF

    def wanted(item):
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if config.getoption("--brief") and (parameters.get("job") not in BRIEF or "is_off" in item.name):
            return False
        return config.getoption("--long") or not item.get_closest_marker("long")

    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = [item for item in items if wanted(item)]


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter and reporter.stats.get("skipped"):
        session.exitstatus = SKIP_STATUS


@dataclasses.dataclass(frozen=True)
class Job:
    """One client program. In arguments `{dir}` is the run's own folder, `{shared}` the session's, `{out}` the result file, `{arm}` the arm."""

    name: str
    command: tuple = ()
    world: int = 2
    needs: tuple = ()  # Python modules without which the job is skipped
    launcher: str = "torchrun"  # "torchrun", "python": the command as it is
    prepare: typing.Callable = None  # prepare(lab, arm): makes what the job reads
    limit_s: int = JOB_LIMIT_S
    collect: typing.Callable = None  # collect(folder): the result of a job that does not write `{out}`

    def argv(self, **paths):
        head = [sys.executable]
        if self.launcher == "torchrun":
            head += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.world)]
        return head + [str(part).format(**paths) for part in self.command]


@dataclasses.dataclass
class Run:
    """What a finished job left behind."""

    status: int
    stdout: str
    stderr: str
    folder: pathlib.Path
    wall_s: float
    result: dict = dataclasses.field(default_factory=dict)

    def explain(self):
        return f"exit status {self.status}\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"

    def logs(self):
        """{rank: [records]} of the library's log."""
        return self._read(lambda path: not path.name.endswith(".node.jsonl"))

    def ledgers(self):
        """{rank: [records]} of the virtual node's own count."""
        return self._read(lambda path: path.name.endswith(".node.jsonl"))

    def _read(self, wanted):
        found = {}
        for path in sorted(self.folder.glob("log/**/*.jsonl")):
            if wanted(path):
                records = [json.loads(line) for line in path.read_text().splitlines()]
                rank = records[0]["rank"]
                assert rank not in found, f"two logs of rank {rank}: {path}"
                found[rank] = records
        return found


class Lab:
    def __init__(self, command, folder):
        self.command = command
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.runs = {}

    def run(self, job, arm):
        """The job's run in this arm, made on the first call. Does not judge the exit status."""
        key = (job, arm)
        if key not in self.runs:
            self.runs[key] = self._run(job, arm)
        return self.runs[key]

    def good(self, job, arm):
        run = self.run(job, arm)
        assert run.status == 0, f"{job.name}, {arm}: {run.explain()}"
        return run

    def _run(self, job, arm):
        for module in job.needs:
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{job.name} needs the Python package {module} (tests/e2e/requirements.txt)")
        if job.prepare:
            job.prepare(self, arm)
        folder = self.folder / job.name / arm
        (folder / "log").mkdir(parents=True)
        out = folder / "out.json"
        argv = job.argv(dir=folder, shared=self.shared, out=out, arm=arm)
        if arm == "cpu":
            argv += ["--device", "cpu"]
        else:
            argv = [str(self.command), "dryrun", "--gpus", str(job.world), *self._arm(arm, folder), "--", *argv]
        start = time.monotonic()
        status, stdout, stderr = execute(argv, folder, job.limit_s)
        run = Run(status, stdout, stderr, folder, time.monotonic() - start)
        if out.exists():
            run.result = json.loads(out.read_text())
        elif job.collect and status == 0:
            run.result = job.collect(folder)
        return run

    @staticmethod
    def _arm(arm, folder):
        kind, _, rest = arm.partition("-")
        log = ["--log", str(folder / "log")]
        if kind in PRECISIONS:
            log += [f"B200OPT_PRECISION={kind}", "B200OPT_STRATEGY=always"]
            kind, _, rest = rest.partition("-")
        return {
            "bare": ["--bare"],
            "off": [*log, "B200OPT=off"],
            "observe": log,
            "": log,
            "deferred": [*log, "B200OPT_VNODE_ORDER=deferred"],
            "adversarial": [*log, "B200OPT_VNODE_ORDER=adversarial", f"B200OPT_VNODE_SEED={rest}"],
        }[kind]


def execute(argv, folder, limit_s=JOB_LIMIT_S):
    """Runs a command in `folder`; on the time limit ends it with all that it started."""
    env = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        MKL_CBWR="AUTO",  # same instruction path whatever a buffer's alignment: bit-identity needs it
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        HF_HOME=str(folder / "hf"),
        PYTHONWARNINGS="ignore",
    )
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        child = subprocess.Popen(argv, cwd=folder, env=env, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
            stderr.write(f"\nended by the test after {limit_s} s\n")
    return status, (folder / "stdout").read_text(), (folder / "stderr").read_text(errors="replace")


# Figures that differ from run to run whatever is preloaded.
MEASURED = re.compile(
    r"(tokens/s |tps: |tflops: |mfu: |GC collection took |'train_runtime': '|'train_samples_per_second': '|'train_steps_per_second': ')[\d.,]+"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+|(?<=/tb/)\d{8}-\d{4}"
)
COLOUR = re.compile(r"\x1b\[[\d;]*m")


def stable_lines(run):
    """Lines of stdout without measured figures and the run's own folder, sorted: ranks that share a terminal interleave as they like."""
    text = COLOUR.sub("", run.stdout).replace(str(run.folder), "DIR")
    return sorted(MEASURED.sub("#", text).splitlines())


@pytest.fixture(scope="session")
def lab(request, tmp_path_factory):
    command = request.config.getoption("--b200opt")
    if not command.exists():
        pytest.fail(f"{command} does not exist: build first, or name the command with --b200opt")
    lab = Lab(command.resolve(), tmp_path_factory.mktemp("e2e"))
    yield lab
    timings = request.config.getoption("--timings")
    if timings:
        rows = {f"{job.name} {arm}": {"wall_s": round(r.wall_s, 1), "steps_per_s": r.result.get("steps_per_s")} for (job, arm), r in lab.runs.items()}
        timings.write_text(json.dumps(rows, indent=1))
