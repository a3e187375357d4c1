# SPDX-License-Identifier: Apache-2.0
"""A job of a second on the virtual node, without PyTorch: each step is a few GEMMs by ctypes, an optimizer that steps, and a line.

    job.py STEPS [WORD...]

torch is a stand-in of a few lines, whose hook is PyTorch's. Words:
  gil          the GEMMs are called with the GIL held
  thread       the training is on another thread, while the main thread waits in C
  notorch      there is no torch
  nohook       torch has no hook
  badhook      registering a hook raises
  two          two optimizers step in each step
  quiet        no lines
  closed       stdout is closed after the third step, and a file of the job's own gets its number
  small        no file of this process may grow beyond 100 bytes
  slow         20 ms before the line of each step and after it
"""
import ctypes
import os
import resource
import sys
import threading
import time
import types

steps, words = int(sys.argv[1]), set(sys.argv[2:])
load = ctypes.PyDLL if "gil" in words else ctypes.CDLL
for name in ("libcudart.so.13", "libcublas.so.13"):
    ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
cuda = load(None)  # as a linked program finds them: what is preloaded comes first
handle, alpha, beta = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
memory = ctypes.c_void_p()
hooks, truth = {}, []


def check(status):
    if status != 0:
        raise SystemExit(f"status {status}")


class Optimizer:
    def step(self):
        for hook in list(hooks.values()):
            hook(self, (), {})


def register_optimizer_step_post_hook(hook):
    if "badhook" in words:
        raise ValueError("no")
    hooks[len(hooks)] = hook
    return object()


if "notorch" not in words:
    module = types.ModuleType("torch.optim.optimizer")
    if "nohook" not in words:
        module.register_optimizer_step_post_hook = register_optimizer_step_post_hook
    sys.modules["torch.optim.optimizer"] = module


def gemm(ta, tb):
    check(cuda.cublasSgemm_v2(handle, ta, tb, 16, 16, 16, ctypes.byref(alpha), memory, 16, memory, 16, ctypes.byref(beta), memory, 16))


def train():
    optimizers = [Optimizer() for _ in range(1 + ("two" in words))]
    for step in range(steps):
        gemm(1, 0)  # forward
        gemm(0, 0)  # gradient of the input
        gemm(0, 1)  # gradient of the weight
        for optimizer in optimizers:
            optimizer.step()
        truth.append(step)
        if "slow" in words:
            time.sleep(0.02)
        if "quiet" not in words and ("closed" not in words or step < 3):
            print(f"step {step} loss {2 + 1 / (1 + step):.6f} tokens/s {1000 + step}", flush=True)
        if "closed" in words and step == 3:
            os.close(1)
            assert os.open("own", os.O_WRONLY | os.O_CREAT, 0o644) == 1
        if "slow" in words:
            time.sleep(0.02)


check(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20)))
check(cuda.cublasCreate_v2(ctypes.byref(handle)))
if "small" in words:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
if "thread" in words:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
print(f"done {len(truth)}", file=sys.stderr)
