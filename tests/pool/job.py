# SPDX-License-Identifier: Apache-2.0
"""Jobs of one GPU for the pool. usage: job.py train STEPS | holes
train: a small model with a batch that grows and shrinks, and an emptied cache after each step; prints losses exactly.
holes: 1,280 MiB in tensors of 8 MiB, of which PyTorch puts two into a segment of 20; exit status 3 when that does not fit."""
import sys

import torch

MIB = 1 << 20


def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1536), torch.nn.GELU(), torch.nn.Linear(1536, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(256 * (1 + step % 3), 512).cuda()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(step, loss.item().hex())
        del batch, loss
        torch.cuda.empty_cache()
    print("free", torch.cuda.mem_get_info()[0] <= torch.cuda.mem_get_info()[1])


def holes():
    try:
        kept = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(160)]
    except torch.OutOfMemoryError:
        print("out of memory")
        sys.exit(3)
    print("fits", len(kept))


train(int(sys.argv[2])) if sys.argv[1] == "train" else holes()
