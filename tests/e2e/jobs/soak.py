# SPDX-License-Identifier: Apache-2.0
"""Trains the demo's model, very small, for many steps and writes what the process holds along the way.

    torchrun --nproc-per-node 2 soak.py --steps 10000 --out FILE
"""
import argparse
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools" / "demo_job"))
import train  # noqa: E402

SAMPLES = 10


def held(device):
    """What this process holds: resident host memory, device memory, descriptors, threads."""
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    free, total = torch.cuda.mem_get_info(device)
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "device_mb": (total - free) / 2**20,
        "pinned_blocks": torch.cuda.host_memory_stats().get("allocation.current", 0) if hasattr(torch.cuda, "host_memory_stats") else 0,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    own = parser.parse_args()
    sys.argv[1:] = ["--width", "32", "--layers", "1", "--seq", "32", "--batch", "1", "--dropout", "0.1", "--text-mb", "0.1"]
    args = train.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = train.parallelize(train.GPT(args).to(device), args, world, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    text = train.read_text(args.text_mb)
    side = torch.cuda.Stream()
    samples, loss_sum = [], 0.0
    for step in range(own.steps):
        with torch.cuda.stream(side):  # a prefetching loader: pinned memory, a stream and an event of its own
            ids, targets = (t.contiguous().pin_memory().to(device, non_blocking=True)
                            for t in train.get_batch(text, args, step, 0, rank, world, torch.device("cpu")))
            ready = torch.cuda.Event(enable_timing=True)
            ready.record()
        torch.cuda.current_stream().wait_event(ready)
        ids.record_stream(torch.cuda.current_stream())
        targets.record_stream(torch.cuda.current_stream())
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scratch = torch.empty(1 << 16, device=device)  # made and given up in every step
        scratch.zero_()
        if step % 10 == 9:
            loss_sum += loss.item()
        if (step + 1) % max(1, own.steps // SAMPLES) == 0:
            torch.cuda.synchronize()
            samples.append({"step": step + 1, **held(device)})
    every = [None] * world
    dist.all_gather_object(every, samples)
    if rank == 0:
        own.out.write_text(json.dumps({"losses": [loss_sum, loss.item()], "samples": every}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
