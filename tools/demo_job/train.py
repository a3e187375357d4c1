# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level GPT on the source text of Python's standard library.

    torchrun --nproc-per-node 2 train.py --mode fsdp2 --steps 50

Works offline; needs PyTorch only. `--device cpu` trains the same model from the same weights on the same batches with gloo.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import sysconfig
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

VOCAB = 256
HEAD_WIDTH = 32
ATTENTION = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--width", type=int, default=128, help="model width, a multiple of 32")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--seq", type=int, default=128, help="tokens per sequence")
    p.add_argument("--batch", type=int, default=4, help="sequences per rank and micro-batch")
    p.add_argument("--accum", type=int, default=1, help="micro-batches per step")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--mode", choices=["fsdp2", "fsdp1", "hsdp", "ddp", "single"], default="fsdp2")
    p.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    p.add_argument("--norm", choices=["layer", "rms"], default="layer")
    p.add_argument("--bias", action="store_true", help="biases in the linear layers")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--ckpt", action="store_true", help="recompute each block's activations in backward")
    p.add_argument("--sdpa", choices=["auto", *ATTENTION], default="auto")
    p.add_argument("--optim", choices=["default", "foreach", "fused"], default="default", help="AdamW's implementation")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    p.add_argument("--seed", type=int, default=0, help="of the initial weights, the dropout and the data")
    p.add_argument("--data-seed", type=int, help="of the order of the data, if it is to be another one")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--eval-every", type=int, default=0, help="steps between two evaluations (default: none)")
    p.add_argument("--text-mb", type=float, default=2.0, help="how much text to read")
    p.add_argument("--out", type=pathlib.Path, help="write losses, gradient norms and speed to this JSON file")
    p.add_argument("--save-grads", type=pathlib.Path, help="write the full gradients of the first step to this file")
    p.add_argument("--save", type=pathlib.Path, help="folder for a distributed checkpoint")
    p.add_argument("--save-at", type=int, help="step after which to write it (default: the last)")
    p.add_argument("--resume", type=pathlib.Path, help="continue from this distributed checkpoint")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        d = args.width
        norm = nn.LayerNorm if args.norm == "layer" else nn.RMSNorm
        self.heads = d // HEAD_WIDTH
        self.norm1 = norm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=args.bias)
        self.proj = nn.Linear(d, d, bias=args.bias)
        self.norm2 = norm(d)
        self.up = nn.Linear(d, 4 * d, bias=args.bias)
        self.down = nn.Linear(4 * d, d, bias=args.bias)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.proj(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, args.width)
        self.positions = nn.Embedding(args.seq, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, VOCAB, bias=False)
        self.recompute = args.ckpt
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def read_text(megabytes):
    """The first `megabytes` of the standard library's modules in order of name, as a tensor of bytes."""
    want = int(megabytes * 1e6)
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= want:
            break
    return torch.frombuffer(text[:want], dtype=torch.uint8)


def get_batch(text, args, step, micro, rank, world, device):
    """Sequences of this rank. They depend on the seed and the step only, so a resumed run sees what it would have seen."""
    seed = args.seed if args.data_seed is None else args.data_seed
    g = torch.Generator().manual_seed((seed + 1) * 1_000_003 + step * args.accum + micro)
    starts = torch.randint(len(text) - args.seq - 1, (world * args.batch,), generator=g)
    starts = starts[rank * args.batch : (rank + 1) * args.batch].tolist()
    ids = torch.stack([text[i : i + args.seq + 1] for i in starts]).long().to(device)
    return ids[:, :-1], ids[:, 1:]


def parallelize(model, args, world, device):
    bf16 = torch.bfloat16 if args.dtype == "bf16" else None
    if args.mode in ("fsdp2", "hsdp"):
        if args.mode == "hsdp":
            mesh = init_device_mesh(device.type, (2, world // 2), mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh(device.type, (world,))
        policy = MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    if args.mode == "fsdp1":
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            mixed_precision=MixedPrecision(param_dtype=bf16, reduce_dtype=torch.float32),
            device_id=device if device.type == "cuda" else None,
            use_orig_params=True,
        )
    if args.mode == "ddp":
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    return model


def gradient_sync(model, args, last):
    """Ranks exchange gradients only in the last micro-batch of a step."""
    if args.mode in ("fsdp2", "hsdp"):
        model.set_requires_gradient_sync(last)
    elif args.mode in ("fsdp1", "ddp") and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def choose_attention(name):
    """Leaves the choice of the attention kernel to PyTorch, or allows one only."""
    for other, allow in ATTENTION.items():
        allow(name in ("auto", other))


@torch.no_grad()
def evaluate(model, text, args, rank, world, device):
    """Mean loss of all ranks on two batches that the training does not see."""
    loss = torch.zeros((), device=device)
    model.eval()
    for batch in range(2):
        x, y = get_batch(text, args, -1 - batch, 0, rank, world, device)
        loss += F.cross_entropy(model(x).float().view(-1, VOCAB), y.reshape(-1)) / 2
    model.train()
    if world > 1:
        dist.all_reduce(loss)
    return loss.item() / world


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_gradients(model, args, rank):
    whole = contextlib.nullcontext()
    if args.mode == "fsdp1":
        whole = FullyShardedDataParallel.summon_full_params(model, with_grads=True)
    with whole:
        names = [n.replace("_fsdp_wrapped_module.", "").removeprefix("module.") for n, _ in model.named_parameters()]
        grads = {name: full(p.grad).detach().float().cpu() for name, p in zip(names, model.parameters())}
    if rank == 0:
        torch.save(grads, args.save_grads)


def main():
    args = parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if args.mode != "single":
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo", device_id=device if args.device == "cuda" else None)

    choose_attention(args.sdpa)
    torch.manual_seed(args.seed)
    text = read_text(args.text_mb)
    model = GPT(args).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    model = parallelize(model, args, world, device)
    implementation = {} if args.optim == "default" else {args.optim: True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, **implementation)
    first = 0
    if args.resume:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=args.resume)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = state["step"]
    if args.compile:
        model = torch.compile(model)
    if rank == 0:
        print(f"{args.mode} on {world} x {device.type}, {args.dtype}: {parameters} parameters, {len(text)} bytes of text", flush=True)

    autocast = torch.autocast(device.type, torch.bfloat16, enabled=args.dtype == "bf16" and args.mode in ("ddp", "single"))
    torch.manual_seed(args.seed + 1 + rank)  # dropout differs between the ranks
    losses, norms, seconds, processor = [], [], [], []
    for step in range(first, args.steps):
        start, busy = time.perf_counter(), time.process_time()
        loss = torch.zeros((), device=device)
        for micro in range(args.accum):
            x, y = get_batch(text, args, step, micro, rank, world, device)
            with gradient_sync(model, args, micro == args.accum - 1):
                with autocast:
                    logits = model(x)
                part = F.cross_entropy(logits.float().view(-1, VOCAB), y.reshape(-1)) / args.accum
                part.backward()
            loss += part.detach()
        if args.save_grads and step == first:
            save_gradients(model, args, rank)
        if args.mode == "fsdp1":
            norm = model.clip_grad_norm_(args.clip)
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        norm = full(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if world > 1:
            dist.all_reduce(loss)
        losses.append(loss.item() / world)
        norms.append(norm.item())
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
        if rank == 0:
            tokens = world * args.accum * args.batch * args.seq
            print(f"step {step} loss {losses[-1]:.9g} grad_norm {norms[-1]:.9g} tokens/s {tokens / seconds[-1]:.0f}", flush=True)
        if not math.isfinite(losses[-1]):
            raise SystemExit(f"the loss is {losses[-1]} at step {step}")
        if args.eval_every and (step + 1) % args.eval_every == 0:
            with autocast:
                loss = evaluate(model, text, args, rank, world, device)
            if rank == 0:
                print(f"step {step} val_loss {loss:.9g}", flush=True)
        if args.save and step == (args.steps - 1 if args.save_at is None else args.save_at):
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments, "step": step + 1}, checkpoint_id=args.save)

    if rank == 0 and args.out:
        steady = seconds[3:] or seconds
        result = {
            "losses": [v.hex() for v in losses],
            "grad_norms": [v.hex() for v in norms],
            "steps_per_s": len(steady) / sum(steady),
            "processor_s": processor,
        }
        args.out.write_text(json.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()
    else:
        threading.Event().wait(0.5)  # a thread of the backward pass still lets go of Python objects, and aborts when Python has gone (pytorch/pytorch#190489)


if __name__ == "__main__":
    main()
