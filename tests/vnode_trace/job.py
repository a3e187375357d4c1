# SPDX-License-Identifier: Apache-2.0
"""The job whose fourth FSDP2 step facts/*.txt shows: a GPT of 2 layers, 128 wide, 64 tokens by 4 sequences per rank.
usage: RANK=… WORLD_SIZE=2 … job.py bias|nobias. Kernels are skipped, so losses mean nothing."""
import ctypes
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TOKENS, VOCAB, BATCH, WIDTH, LAYERS, HEADS, TRACED_STEP = 64, 256, 4, 128, 2, 4, 3


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + F.dropout(self.proj(y), 0.0, self.training)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(bias) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN asks for more than launches that compute nothing
    torch.manual_seed(0)
    model = GPT(sys.argv[1] == "bias").to(device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    node = ctypes.CDLL("libb200vnode.so")
    mark = lambda text, step: node.vnode_trace_mark(text.encode()) if step == TRACED_STEP else None
    for step in range(TRACED_STEP + 1):
        x = torch.randint(VOCAB, (BATCH, TOKENS)).to(device)
        y = torch.randint(VOCAB, (BATCH, TOKENS)).to(device)
        mark("step begin", step)
        loss = F.cross_entropy(model(x).float().view(-1, VOCAB), y.view(-1))
        mark("backward", step)
        loss.backward()
        mark("clip", step)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        mark("optimizer", step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark("step end", step)
        total = loss.detach()
        dist.all_reduce(total)
        total.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
