# SPDX-License-Identifier: Apache-2.0
"""What only a real GPU can show; README.md says why each check is here."""
import collections
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import oracle

TRAIN = ROOT / "tools" / "demo_job" / "train.py"
STEPS = 30
# Flash attention adds up its gradients in no fixed order on a GPU; the plain products do not.
OPTIONS = ["--sdpa", "math", "--steps", str(STEPS)]
HBM_NOISE_BYTES = 4 << 20


class Bench:
    """Runs the demo's job on the machine's GPUs, each arm once. What follows a dash in an arm's name only tells runs apart."""

    def __init__(self, build, world, folder):
        self.command, self.library, self.world, self.folder = build / "b200opt", build / "libb200opt.so", world, folder
        self.runs = {}

    def config(self):
        return oracle.Config(world=self.world, sdpa="math")

    def argv(self, out):
        head = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.world)]
        return [*head, str(TRAIN), *OPTIONS, "--out", str(out)]

    def run(self, arm):
        if arm not in self.runs:
            folder = self.folder / arm
            folder.mkdir()
            prefix = {
                "bare": [],
                "off": [str(self.command), "run", "B200OPT=off", "--"],
                "observe": [str(self.command), "run", f"B200OPT_LOG_DIR={folder}/log", "--"],
                "node": [str(self.command), "dryrun", "--gpus", str(self.world), "--log", f"{folder}/log", "--"],
            }[arm.split("-")[0]]
            env = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="1")
            child = subprocess.run([*prefix, *self.argv(folder / "out.json")], capture_output=True, text=True, env=env, cwd=folder, timeout=600)
            assert child.returncode == 0, f"{arm}: {child.stderr[-4000:]}"
            self.runs[arm] = json.loads((folder / "out.json").read_text())
        return self.runs[arm]

    def log(self, arm):
        """Records of rank 0."""
        self.run(arm)
        (path,) = [p for p in (self.folder / arm / "log").glob("*/*-r0-*.jsonl") if not p.name.endswith(".node.jsonl")]
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def bench(request, gpus, tmp_path_factory):
    return Bench(request.config.getoption("--build").resolve(), min(gpus, 2), tmp_path_factory.mktemp("gpu"))


def total(records, kind, key, *fields):
    table = collections.defaultdict(lambda: [0] * len(fields))
    for r in records:
        if r["t"] == kind:
            row = table[tuple(r[k] for k in key)]
            for i, field in enumerate(fields):
                row[i] += r[field]
    return dict(table)


def test_job_is_reproducible_without_the_library(bench):
    """The control: without it, equal losses below would mean nothing, and different ones neither."""
    assert bench.run("bare")["losses"] == bench.run("bare-again")["losses"]


@pytest.mark.parametrize("arm", ["off", "observe"])
def test_losses_are_bit_identical(bench, arm):
    assert bench.run(arm)["losses"] == bench.run("bare")["losses"]
    assert bench.run(arm)["grad_norms"] == bench.run("bare")["grad_norms"]


def test_gemm_flops_are_the_models(bench):
    assert sum(r["flops"] for r in bench.log("observe") if r["t"] == "gemm") == STEPS * oracle.gemm_flops(bench.config())


def test_collectives_are_what_sharding_must_send(bench):
    if bench.world < 2:
        pytest.skip("one GPU only: there is nobody to send to")
    expected = {key: [calls * STEPS, size * STEPS] for key, (calls, size) in oracle.collectives(bench.config()).items()}
    assert total(bench.log("observe"), "coll", ("op", "dtype", "nranks"), "calls", "bytes") == expected


IDENTITY = {
    "gemm": ("api", "role", "m", "n", "k", "batch", "a", "b", "d", "compute", "epilogue"),
    "coll": ("op", "dtype", "nranks"),
}


@pytest.mark.parametrize("kind", IDENTITY)
def test_virtual_node_sees_the_calls_of_the_gpu(bench, kind):
    """PyTorch must take the same path on the virtual node as on the GPU, or tests on the node would show another program. cuBLAS and
    NCCL calls are PyTorch's own on both; runtime calls differ by the kernels that the node replaces."""
    key = IDENTITY[kind]
    assert total(bench.log("node"), kind, key, "calls") == total(bench.log("observe"), kind, key, "calls")


class Nvml:
    """Used bytes of GPU 0 as NVML states them, with the time of each sample."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        assert self.library.nvmlInit_v2() == 0
        self.device = ctypes.c_void_p()
        assert self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0
        self.samples = []
        self.stop = threading.Event()

    def used(self):
        memory = self.Memory()
        assert self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)) == 0
        return memory.used

    def watch(self):
        while not self.stop.wait(0.005):
            self.samples.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC), self.used()))


def test_used_memory_in_the_log_follows_nvml(bench):
    """The driver's total minus free, as logged at each step, and NVML's figure differ by what the driver keeps for itself: a constant."""
    nvml = Nvml()
    watcher = threading.Thread(target=nvml.watch)
    watcher.start()
    try:
        steps = [r for r in bench.log("observe-watched") if r["t"] == "step" and r["hbm_used"] >= 0]
    finally:
        nvml.stop.set()
        watcher.join()
    steady = steps[len(steps) // 2 :]
    assert len(steady) >= 5, "no steps with the driver's figure in the log"
    gaps = [min(nvml.samples, key=lambda s: abs(s[0] - step["t_ns"]))[1] - step["hbm_used"] for step in steady]
    assert max(gaps) - min(gaps) <= HBM_NOISE_BYTES, gaps
    held = [step["hbm_used"] - sum(step["hbm"].values()) for step in steady]
    assert min(held) > 0 and max(held) - min(held) <= HBM_NOISE_BYTES, "memory that no owner explains came or went"


def cudart():
    script = "import torch; torch.cuda.init(); print([l.split()[-1] for l in open('/proc/self/maps') if 'libcudart.so' in l][0])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_cost_of_a_passed_through_call(bench, request, record_property):
    """Prints nanoseconds over a direct call of cudaEventRecord, interleaved; the budget is 25 ns."""
    program = request.config.getoption("--build").resolve() / "tests" / "gpu" / "gpu_call_cost"
    runtime = cudart()
    run = [str(bench.command), "run"]
    arms = {"direct": [], "off": [*run, "B200OPT=off", "--"], "observe": [*run, f"B200OPT_LOG_DIR={bench.folder}/cost", "--"]}
    times = {arm: [] for arm in arms}
    for _ in range(9):
        for arm, prefix in arms.items():
            child = subprocess.run([*prefix, str(program), runtime], capture_output=True, text=True, check=True)
            times[arm].append(float(child.stdout))
    for arm in arms:
        over = statistics.median(times[arm]) - statistics.median(times["direct"])
        record_property(f"{arm}_over_direct_ns", over)
        print(f"{arm:8} {statistics.median(times[arm]):8.1f} ns a call, {over:+6.1f} ns over direct")
    for arm in ("bare", "off", "observe"):
        print(f"{arm:8} {bench.run(arm)['steps_per_s']:8.2f} steps/s of the demo's job")


TABLE_ROWS = ("alignment size_zero failure first_call free_null wrong_frees free_waits free_is_a_wait awaited cross_api other_threads other_devices peers memory_info "
              "attributes buffer_id nccl_registered nccl_deregistered sync_memops tokens tokens_among_others range_handle retained_handle address_range ipc virtual_memory other_backing "
              "stream_ordered capture capture_of_another_thread driver_capture captured_memory contents "
              "reset primary_context forked at_exit").split()
# What the pool may change, as in tests/pool/test_table.py.
TABLE_MAY_DIFFER = {"attributes": "type of a freed one", "buffer_id": "new id", "nccl_deregistered": "new id", "retained_handle": "new id", "address_range": "MiB", "contents": ""}


@pytest.mark.parametrize("row", TABLE_ROWS)
def test_memory_is_the_same_with_the_pool(row, bench, request):
    """The rows of tests/pool/table.c: what the virtual node says of device memory is what a GPU does, and the pool keeps to it."""
    program = request.config.getoption("--build").resolve() / "tests" / "pool" / "pool_table"
    env = dict(os.environ, POOL_TEST_CUDART=cudart())
    arms = {"bare": [], "observe": ["B200OPT_MEMORY=observe"], "pool": ["B200OPT_MEMORY=pool"]}
    found = {}
    for arm, variables in arms.items():
        prefix = [str(bench.command), "run", f"B200OPT_LOG_DIR={bench.folder}/table", *variables, "--"] if variables else []
        child = subprocess.run([*prefix, str(program), row], capture_output=True, text=True, env=env, timeout=120)
        if child.returncode == 77:
            pytest.skip("not on this machine")
        assert child.returncode == 0, f"{arm}: {child.stdout}{child.stderr}"
        found[arm] = child.stdout.splitlines()
    assert found["observe"] == found["bare"]
    same = [(a, b) for a, b in zip(found["bare"], found["pool"]) if not (row in TABLE_MAY_DIFFER and b.startswith(TABLE_MAY_DIFFER[row]))]
    assert len(found["pool"]) == len(found["bare"]) and all(a == b for a, b in same), (found["bare"], found["pool"])
