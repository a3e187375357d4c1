# SPDX-License-Identifier: Apache-2.0
"""A training step on one GPU, captured once in a CUDA graph and replayed. usage: graphed.py --out FILE [--eager]

Losses are written as in tools/demo_job/train.py; --eager makes the same steps without a graph.
"""
import argparse
import json
import pathlib
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, TOKENS, STEPS, WARM_UP = 128, 256, 12, 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.zeros(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    y = torch.zeros_like(x)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x).float(), y.float())
        loss.backward()
        optimizer.step()
        return loss.detach()

    def feed(number):
        g = torch.Generator().manual_seed(number)
        data = torch.randn(TOKENS, WIDTH, generator=g)
        x.copy_(data)
        y.copy_(data.roll(1, 1) * data)

    losses = []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in range(WARM_UP):
            feed(number)
            losses.append(step().item())
    torch.cuda.current_stream().wait_stream(side)
    if not args.eager:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for number in range(WARM_UP, STEPS):
        feed(number)
        if args.eager:
            loss = step()
        else:
            graph.replay()
        losses.append(loss.item())
    args.out.write_text(json.dumps({"losses": [float(v).hex() for v in losses]}))
    threading.Event().wait(0.5)  # a thread of the backward pass still lets go of Python objects, and aborts when Python has gone (pytorch/pytorch#190489)


if __name__ == "__main__":
    main()
