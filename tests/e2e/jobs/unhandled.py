# SPDX-License-Identifier: Apache-2.0
"""Computes with what a virtual node cannot have.

    python unhandled.py kernel      a CUDA kernel of the user's own
    python unhandled.py function    row-wise scaled FP8: CUTLASS inside PyTorch, which asks the driver for a tensor map
"""
import sys

import torch


def kernel():
    doubled = torch.cuda.jiterator._create_jit_fn("template <typename T> T doubled(T x) { return x + x; }")
    return doubled(torch.ones(1024, device="cuda"))


def function():
    a = torch.ones(64, 64, device="cuda").to(torch.float8_e4m3fn)
    b = torch.ones(64, 64, device="cuda").to(torch.float8_e4m3fn).t()
    rows = torch.ones(64, 1, device="cuda")
    columns = torch.ones(1, 64, device="cuda")
    return torch._scaled_mm(a, b, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)


if __name__ == "__main__":
    print("result", {"kernel": kernel, "function": function}[sys.argv[1]]().float().sum().item(), flush=True)
