# SPDX-License-Identifier: Apache-2.0
"""A job that is limited by one thing: job.py KIND FACTOR STEPS. FACTOR multiplies what makes it so."""
import os
import sys
import threading
import time

import torch
from torch import nn

MIB = 1 << 20


def linear_stack(width, depth, dtype=torch.bfloat16):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width, bias=False), nn.ReLU())]
    return nn.Sequential(*layers).to("cuda", dtype)


def trainer(model, tokens):
    """A step of training: forward, backward, optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    width, dtype = model[0].in_features, model[0].weight.dtype

    def step(batch=None):
        batch = torch.ones(tokens, width, device="cuda", dtype=dtype) if batch is None else batch
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compute(factor):
    return trainer(linear_stack(4096, 4), int(16384 * factor))


def data(factor):
    """The next batch takes its time: some 2 ms of work wait for it."""
    train = trainer(linear_stack(4096, 4), 16384)
    width = 4096

    def step():
        time.sleep(0.05 * factor)
        train(torch.ones(16384, width, dtype=torch.bfloat16, device="cuda"))

    return step


def host(factor):
    """Operators on a few numbers, each of which the device finishes before the next one is issued."""
    model = linear_stack(64, 2, torch.float32)
    train = trainer(model, 16)

    def step():
        batch = torch.ones(16, 64, device="cuda")
        for _ in range(int(100 * factor)):
            batch = batch * 1.0
        train(batch)

    return step


def bandwidth(factor):
    """Element-wise operators on tensors that only HBM can hold."""
    model = linear_stack(64, 2, torch.float32)
    train = trainer(model, 16)
    big = torch.ones(int(24 * MIB * factor), device="cuda")

    def step():
        for _ in range(6):
            big.mul_(1.0)
        train()
        for _ in range(6):
            big.add_(1.0)

    return step


def refused(factor):
    """Two streams that cannot use each other's cached blocks, which together do not fit."""
    train = trainer(linear_stack(512, 2), 256)
    side = torch.cuda.Stream()
    size = int(220 * MIB * factor)

    def step():
        first = torch.empty(size, dtype=torch.uint8, device="cuda")
        train()
        del first
        with torch.cuda.stream(side):
            torch.empty(size, dtype=torch.uint8, device="cuda")

    return step


def churn(factor):
    """The cache is emptied in every step, with hardly anything left free."""
    train = trainer(linear_stack(512, 2), 256)
    free, total = torch.cuda.mem_get_info()
    size = (free - int(0.05 * total)) // MIB * MIB
    held = [torch.empty(size - int(100 * MIB * factor), dtype=torch.uint8, device="cuda")]

    def step():
        torch.empty(int(100 * MIB * factor), dtype=torch.uint8, device="cuda")
        train()
        torch.cuda.empty_cache()
        return held

    return step


def communication(factor):
    """Layers whose weights are gathered when they are needed, one after the other."""
    from torch import distributed

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl")
    train = trainer(linear_stack(1024, 2), 1024)
    part = torch.ones(int(16 * MIB * factor), dtype=torch.bfloat16, device="cuda")
    whole = torch.empty(2 * part.numel(), dtype=torch.bfloat16, device="cuda")
    gradient = torch.ones(1024, device="cuda")

    def step():
        for _ in range(4):
            distributed.all_gather_into_tensor(whole, part)
            train()
        distributed.all_reduce(gradient)

    return step


def main():
    kind, factor, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    least_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0
    step = globals()[kind](factor)
    begun, done = time.monotonic(), 0
    while done < steps or time.monotonic() - begun < least_s:
        step()
        done += 1
    torch.cuda.synchronize()
    if kind == "communication":
        torch.distributed.destroy_process_group()
    threading.Event().wait(0.5)  # a thread of the backward pass still lets go of Python objects, and aborts when Python has gone (pytorch/pytorch#190489)


main()
