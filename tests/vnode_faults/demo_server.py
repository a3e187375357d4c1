# SPDX-License-Identifier: Apache-2.0
"""Runs the demo job with faults, in forks of a process that has imported PyTorch and not touched CUDA: a run takes seconds.

    demo_server.py TRAIN_PY GRACE_S

Reads lines of JSON, {"environment": {...}, "arguments": [...], "timeout_s": of collectives or null}, and answers each with one line: for each of two ranks its end (exit status,
negative for a signal, null when it outlived the other's failure by GRACE_S and was killed) and what it wrote to stdout and stderr. To be started on
the stand-ins. A rank that is through, or ends by an exception, leaves without Python's and PyTorch's clearing up: half of the time, and
another matter.
"""
import datetime
import functools
import importlib.util
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import sys
import tempfile
import time

import torch
import torch._dynamo  # what PyTorch imports late
import torch.distributed.tensor
import torch.distributed.fsdp

WORLD = 2
RUN_LIMIT_S = 300


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Child(BaseException):
    """Leaves the server's code in a forked rank, whose end is that of a Python program."""


def start_rank(rank, case, port, folder):
    child = os.fork()
    if child:
        return child
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
    os.environ.update(case["environment"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = ["train.py", *case["arguments"]]
    if case.get("timeout_s"):
        train.dist.init_process_group = functools.partial(train.dist.init_process_group, timeout=datetime.timedelta(seconds=case["timeout_s"]))
    raise Child


def end_of(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def wait_for(ranks, grace_s):
    """Ends of all ranks."""
    ends, deadline = {}, time.monotonic() + RUN_LIMIT_S
    descriptors = {os.pidfd_open(pid): rank for rank, pid in ranks.items()}
    while len(ends) < len(ranks):
        ready, _, _ = select.select([d for d, r in descriptors.items() if r not in ends], [], [], max(0, deadline - time.monotonic()))
        for descriptor in ready:
            rank = descriptors[descriptor]
            ends[rank] = end_of(os.waitpid(ranks[rank], 0)[1])
            if ends[rank]:
                deadline = min(deadline, time.monotonic() + grace_s)
        if not ready:
            for rank in set(ranks) - set(ends):
                os.kill(ranks[rank], signal.SIGKILL)
                os.waitpid(ranks[rank], 0)
                ends[rank] = None
    for descriptor in descriptors:
        os.close(descriptor)
    return ends


def run(case, grace_s):
    folder, port = pathlib.Path(tempfile.mkdtemp()), free_port()  # a rank leaves by an exception: nothing here may clean up on that way
    ranks = {rank: start_rank(rank, case, port, folder) for rank in range(WORLD)}
    ends = wait_for(ranks, grace_s)
    result = [{"end": ends[r], "out": (folder / f"out{r}").read_text(), "err": (folder / f"err{r}").read_text(errors="replace")}
              for r in range(WORLD)]
    shutil.rmtree(folder)
    return result


def serve(grace_s):
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(run(json.loads(line), grace_s)), flush=True)


spec = importlib.util.spec_from_file_location("train", sys.argv[1])
train = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)
try:
    serve(float(sys.argv[2]))
    sys.exit()
except Child:
    pass
status = 0
try:
    train.main()
except BaseException:
    status = 1
    sys.excepthook(*sys.exc_info())
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
