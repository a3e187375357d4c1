# SPDX-License-Identifier: Apache-2.0
"""With kernels skipped, the calls of an FSDP2 step equal facts/*.txt: runtime, cuBLAS, cuBLASLt and NCCL calls, recorded on an
independent prototype of the node with the same wheel (torch 2.15.0, CUDA 13)."""
import difflib
import importlib.metadata
import itertools
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
STANDINS = pathlib.Path(os.environ["B200_BUILD"]) / "vnode"
LIBRARIES = ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1", "libcublasLt.so.13", "libcublas.so.13", "libnccl.so.2")
RANKS = 2

# Calls that the job makes and the facts do not show, each because of the recorder that made them.
NOT_RECORDED = {
    "cudaGetDevice": "PyTorch's device guards; the recorder left out queries without arguments of interest",
    "cudaGetLastError": "PyTorch's check behind each launch; as above",
    "cudaStreamIsCapturing": "as above",
    "cudaDeviceGetAttribute": "as above",
    "cudaFuncSetAttribute": "as above",
    "__cudaPushCallConfiguration": "half of a launch; the recorder showed the launch alone",
    "__cudaPopCallConfiguration": "as above",
    "cudaEventDestroy": "the recorder showed what is made, not what is given back",
    "cublasLtMatmulDescDestroy": "as above",
    "cublasLtMatrixLayoutDestroy": "as above",
    "cublasLtMatmulPreferenceCreate": "an object without contents; its attributes are shown",
    "cublasLtMatmulPreferenceDestroy": "as above",
    "cuDevicePrimaryCtxGetState": "the recorder saw none of the driver's calls",
    "cuCtxGetCurrent": "as above",
}


pytestmark = pytest.mark.skipif(not importlib.metadata.version("torch").startswith("2.15.0"),
                                reason="the facts are of torch 2.15.0; other releases make other calls")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module", params=["bias", "nobias"])
def traces(request, tmp_path_factory):
    """(kind, trace of each rank)"""
    folder = tmp_path_factory.mktemp(request.param)
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")}
    env.update(LD_PRELOAD=":".join(str(STANDINS / name) for name in LIBRARIES), OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(free_port()), WORLD_SIZE=str(RANKS), B200OPT_VNODE_SESSION=f"trace-{os.getpid()}-{request.param}",
               B200OPT_VNODE_KERNELS="skip", B200OPT_VNODE_TRACE=f"{folder}/")
    command = [sys.executable, "-B", str(HERE / "job.py"), request.param]
    ranks = [subprocess.Popen(command, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stderr=subprocess.PIPE, text=True) for r in range(RANKS)]
    for rank in ranks:
        _, said = rank.communicate(timeout=300)
        assert rank.returncode == 0, said
        assert said.count("kernels compute nothing") == 1, said
    found = [list(folder.glob(f"r{r}-*.trace")) for r in range(RANKS)]
    assert [len(f) for f in found] == [1] * RANKS
    return request.param, [f[0].read_text().splitlines() for f in found]


def step_of(lines):
    marks = [i for i, line in enumerate(lines) if "####" in line]
    return lines[marks[0]:marks[-1] + 1]


def without_own_threads(lines):
    """Without the threads of the process group, which poll on their own clock. They launch nothing."""
    working = {line.split()[0] for line in lines if line.split()[1].startswith(("__cudaLaunchKernel", "####"))}
    return [line for line in lines if line.split()[0] in working]


def normalised(lines):
    """Threads, streams, events, handles and communicators numbered in order of first appearance; addresses left out."""
    lines = [line for line in without_own_threads(lines) if line.split()[1] not in NOT_RECORDED]
    counters, known = {}, {}

    def renamed(match):
        kind, name = match.group(1), match.group(0)
        if name == "s=0":
            return name
        if name not in known:
            known[name] = f"{kind}{next(counters.setdefault(kind, itertools.count(1)))}"
        return known[name]

    def line_of(line):
        created = re.search(r"-> (e=\d+)$", line)
        if created:
            known.pop(created.group(1), None)
        line = re.sub(r"(attr=8 size=8 val=)0x[0-9a-f]+", r"\1address", line)  # the bias pointer
        return re.sub(r"(?<!\S)(t|s=|e=|h|c)\d+(?!\S)", renamed, line)

    return [line_of(line) for line in lines]


def facts(kind):
    return (HERE / "facts" / f"trace_step_fsdp2_{kind}.txt").read_text().splitlines()


def test_a_step_makes_the_calls_of_the_facts(traces):
    kind, ranks = traces
    expected = normalised(facts(kind))
    assert len(expected) > 400
    for rank, lines in enumerate(ranks):
        found = normalised(step_of(lines))
        difference = list(difflib.unified_diff(expected, found, "facts", f"rank {rank}", lineterm="", n=2))
        assert not difference, "\n".join(difference[:60])


def test_what_is_not_recorded_is_needed(traces):
    """No row of the table that the job does not use (the Lt objects only with biases)."""
    kind, ranks = traces
    called = {line.split()[1] for line in step_of(ranks[0])}
    assert not {line.split()[1] for line in facts(kind)} & set(NOT_RECORDED)
    unused = set(NOT_RECORDED) - called
    assert all(name.startswith("cublasLt") for name in unused) and (not unused or kind == "nobias")


def test_steps_repeat(traces):
    """Both ranks make the same calls."""
    _, (first, second) = traces
    assert normalised(step_of(first)) == normalised(step_of(second))
