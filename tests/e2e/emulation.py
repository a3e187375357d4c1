# SPDX-License-Identifier: Apache-2.0
"""What a linear layer computes in FP8 or MXFP8, in plain PyTorch on CPU: the definition that converted jobs are held against.

    torchrun --nproc-per-node 2 emulation.py --recipe fp8|mxfp8 --device cpu TRAIN_OPTION...

runs tools/demo_job/train.py with that arithmetic in every linear layer. Written from the definition of the formats (OCP's FP8 and
MX, tests/exec/vectors.json), not from the library's kernels.

Of Y = X·Wᵀ, dX = dY·W and dW = dYᵀ·X each product quantises its own two operands, from BF16, along the dimension that it
contracts; it is summed in FP32, the bias is added, and the result is rounded once to BF16.

  fp8    one scale per tensor, 448/amax (57344/amax for dY): X and W in E4M3, dY in E5M2
  mxfp8  E4M3 for all; a power of two per 32 elements, the smallest with which the largest of them is at most 448

`--shuffle N` deals the sequences of a step to the ranks anew, in another way for each N: the same training but for the order of its
sums and for what shares a scale. With `--recipe none` the program runs on any device, the virtual node included.
"""
import argparse
import os
import dataclasses
import pathlib
import runpy
import sys

import torch
import torch.nn.functional as F

TRAIN = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_job" / "train.py"
FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}
BLOCK = 32
SCALE_MAX = 2.0**126


def cast(values, element):
    """FP32 values rounded to an FP8 format: nearest, ties to even; finite ones saturate, Inf and NaN become NaN."""
    dtype, largest = FORMATS[element]
    rounded = values.clamp(-largest, largest).to(dtype).float()
    return torch.where(values.isfinite(), rounded, float("nan"))


def per_tensor(x, element):
    """(values in the format's range, factor that takes them back)."""
    x = x.float()
    amax = x.abs().max()
    scale = (torch.tensor(FORMATS[element][1]) / amax).clamp(max=SCALE_MAX)
    scale = torch.where(amax == 0, 1.0, torch.where(amax.isfinite(), scale, float("nan")))
    return cast(x * scale, element), 1 / scale


def per_block(x):
    """Values as they are after quantisation in blocks along the last dimension, whose length is a multiple of 32."""
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True)
    fraction, exponent = torch.frexp(amax)  # amax = fraction · 2^exponent with fraction from 1/2 to 1; 448 = 7/8 · 2^9
    exponent = (exponent - 9 + (fraction > 7 / 8)).clamp(-127, 127)
    quantised = torch.ldexp(cast(torch.ldexp(blocks, -exponent), "e4m3"), exponent)
    return torch.where(amax.isfinite(), quantised, float("nan")).flatten(-2)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Two quantised operands, each [free dimension, contracted dimension], and the factor of their product."""

    a: torch.Tensor
    b: torch.Tensor
    factor: torch.Tensor

    def product(self):
        return (self.a @ self.b.t()) * self.factor

    def exact(self):
        """(product in FP64, sum of the terms' magnitudes)."""
        a, b, factor = self.a.double(), self.b.double(), self.factor.double()
        return (a @ b.t()) * factor, (a.abs() @ b.abs().t()) * factor


def quantise(recipe, a, a_element, b, b_element):
    if recipe == "mxfp8":
        return Operands(per_block(a), per_block(b), torch.tensor(1.0))
    (a, a_factor), (b, b_factor) = per_tensor(a, a_element), per_tensor(b, b_element)
    return Operands(a, b, a_factor * b_factor)


def fprop(recipe, x, weight):
    return quantise(recipe, x, "e4m3", weight, "e4m3")


def dgrad(recipe, dy, weight):
    return quantise(recipe, dy, "e5m2", weight.t(), "e4m3")


def wgrad(recipe, dy, x):
    return quantise(recipe, dy.t(), "e5m2", x.t(), "e4m3")


class QuantisedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, recipe, x, weight, bias):
        assert x.dtype == weight.dtype == torch.bfloat16, f"{x.dtype} and {weight.dtype}: the recipes start from BF16"
        ctx.save_for_backward(x, weight)
        ctx.recipe, ctx.bias = recipe, bias is not None
        y = fprop(recipe, x.flatten(0, -2), weight).product()
        if bias is not None:
            y = y + bias.float()
        return y.bfloat16().unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        shape, dy = x.shape, dy.flatten(0, -2)
        dx = dgrad(ctx.recipe, dy, weight).product().bfloat16().view(shape)
        dw = wgrad(ctx.recipe, dy, x.flatten(0, -2)).product().bfloat16()
        return None, dx, dw, dy.sum(0) if ctx.bias else None


def install(recipe):
    """Every linear layer of this process from here on."""
    F.linear = lambda x, weight, bias=None: QuantisedLinear.apply(recipe, x, weight, bias)


def shuffled(get_batch, seed):
    """The sequences of all ranks dealt anew for each step."""

    def shuffled_batch(text, args, step, micro, rank, world, device):
        ranks = [get_batch(text, args, step, micro, r, world, device) for r in range(world)]
        order = torch.randperm(world * args.batch, generator=torch.Generator().manual_seed(seed * 1_000_003 + step))
        mine = order[rank * args.batch : (rank + 1) * args.batch].to(device)
        return tuple(torch.cat(parts)[mine] for parts in zip(*ranks))

    return shuffled_batch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=["none", "fp8", "mxfp8"], default="none")
    parser.add_argument("--shuffle", type=int, default=0)
    args, rest = parser.parse_known_args()
    if args.recipe != "none":
        install(args.recipe)
    sys.argv = [str(TRAIN), *rest]
    train = runpy.run_path(str(TRAIN))
    if args.shuffle:
        train["main"].__globals__["get_batch"] = shuffled(train["get_batch"], args.shuffle)
    train["main"]()
    if "cpu" in rest:  # threads of PyTorch's may outlive the interpreter there, which now and then ends the process by SIGABRT
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
