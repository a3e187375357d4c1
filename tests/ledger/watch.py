# SPDX-License-Identifier: Apache-2.0
"""Runs a training script and writes down, after every step of any optimizer, what the virtual node counts as held by each owner.

    torchrun ... watch.py FOLDER train.py --mode fsdp2
    torchrun ... watch.py FOLDER -m torchtitan.train ...

One line of JSON a step in FOLDER/stamps.PID: the time of CLOCK_MONOTONIC, {owner: [current, peak]} in bytes, and what the driver's
memory pool reserves and what of that is used.
"""
import ctypes
import json
import os
import pathlib
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

OWNERS = ("pytorch", "nccl", "cublas", "other")  # enum vnode_owner
POOL_ATTRIBUTES = {"reserved": 5, "used": 7}  # CU_MEMPOOL_ATTR_{RESERVED,USED}_MEM_CURRENT


def node_counts(device):
    counts = {}
    for index, owner in enumerate(OWNERS):
        current, peak = ctypes.c_uint64(), ctypes.c_uint64()
        ctypes.CDLL(None).vnode_ledger_memory(device, index, ctypes.byref(current), ctypes.byref(peak))
        counts[owner] = [current.value, peak.value]
    return counts


def pool_use(device):
    driver = ctypes.CDLL("libcuda.so.1")
    pool, value = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device) == 0
    use = {}
    for name, attribute in POOL_ATTRIBUTES.items():
        assert driver.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(value)) == 0
        use[name] = value.value
    return use


def main():
    folder, *command = sys.argv[1:]
    stamps = (pathlib.Path(folder) / f"stamps.{os.getpid()}").open("a")

    def stamp(*_):
        torch.cuda.synchronize()
        device = torch.cuda.current_device()
        line = {"owners": node_counts(device), "pool": pool_use(device), "t_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
        stamps.write(json.dumps(line) + "\n")
        stamps.flush()

    register_optimizer_step_post_hook(stamp)
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[0] = str(pathlib.Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


main()
