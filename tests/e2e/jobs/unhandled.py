# SPDX-License-Identifier: Apache-2.0
"""Uses a kernel that lives inside PyTorch's CUDA library only (CUTLASS, row-wise scaled FP8), which no CPU implementation backs."""
import torch


def main():
    a = torch.ones(64, 64, device="cuda").to(torch.float8_e4m3fn)
    b = torch.ones(64, 64, device="cuda").to(torch.float8_e4m3fn).t()
    rows = torch.ones(64, 1, device="cuda")
    columns = torch.ones(1, 64, device="cuda")
    out = torch._scaled_mm(a, b, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)
    print("result", out.float().sum().item(), flush=True)


if __name__ == "__main__":
    main()
