# SPDX-License-Identifier: Apache-2.0
"""DDP job that is fed by DataLoader workers through pinned memory and non-blocking copies.

    torchrun --nproc-per-node 2 loader.py --workers 2 --start-method spawn --out losses.json

The next batch is asked for, and the previous pinned one dropped, before the step that uses the copy has run: what a prefetching
loop does. With --workers 0 the same batches are made in the process and copied from pageable memory.
"""
import argparse
import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Waves(torch.utils.data.Dataset):
    """Sine waves with a phase that depends on the index; the target is the next value."""

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        t = torch.arange(65, dtype=torch.float64)
        wave = torch.sin(0.1 * (1 + i % 7) * t + i).float()
        return wave[:-1], wave[1:]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--start-method", choices=["fork", "spawn"], default="fork")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--out", type=pathlib.Path, required=True)
    args = p.parse_args()

    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    data = Waves()
    sampler = torch.utils.data.DistributedSampler(data, shuffle=True, seed=0)
    feed = {"multiprocessing_context": args.start_method, "persistent_workers": True} if args.workers else {}
    pinned = args.workers > 0
    loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler, num_workers=args.workers, pin_memory=pinned, **feed)

    def upload(batch):
        return [t.to(device, non_blocking=pinned) for t in batch]

    losses = []
    batches = iter(loader)
    x, y = upload(next(batches))
    for step in range(args.steps):
        ahead = upload(next(batches))
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0:
            print(f"step {step} loss {losses[-1]:.9g}", flush=True)
        x, y = ahead
    if rank == 0:
        args.out.write_text(json.dumps({"losses": [v.hex() for v in losses]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
