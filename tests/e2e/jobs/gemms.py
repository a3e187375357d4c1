# SPDX-License-Identifier: Apache-2.0
"""The three products of linear layers of several shapes and kinds of numbers, on a GPU. usage: gemms.py --out FILE

Writes what went in and what came out: {case: {x, weight, bias, dy, y, dx, dw, y32, dx32, dw32}}; the last three are the same
products with an FP32 result. Forward has a bias where `bias` is there.
"""
import argparse
import itertools

import torch

SHAPES = [(512, 128, 384), (96, 32, 64), (160, 224, 1056), (32, 1024, 16)]  # tokens, in, out


def normal(g, *shape):
    return torch.randn(shape, generator=g)


KINDS = {
    "normal": normal,
    "wide": lambda g, *shape: normal(g, *shape) * torch.exp2(torch.randint(-12, 12, shape, generator=g)),
    "outliers": lambda g, *shape: normal(g, *shape) * torch.where(torch.arange(shape[-1]) % 37 == 5, 3000.0, 1.0),
    "sparse": lambda g, *shape: normal(g, *shape) * (torch.rand((*shape[:-1], shape[-1] // 16), generator=g) < 0.3).repeat_interleave(16, -1),
    "tiny": lambda g, *shape: normal(g, *shape) * 2.0**-60,
    "steps": lambda g, *shape: torch.randint(-31, 32, shape, generator=g) / 16 * 7.0,  # many ties, many blocks at the edge of 448
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    results = {}
    for number, ((tokens, fan_in, fan_out), (kind, draw)) in enumerate(itertools.product(SHAPES, KINDS.items())):
        g = torch.Generator().manual_seed(number)
        x, weight, dy = draw(g, tokens, fan_in), normal(g, fan_out, fan_in) * 0.02, draw(g, tokens, fan_out)
        case = {"x": x.bfloat16(), "weight": weight.bfloat16(), "dy": dy.bfloat16()}
        if number % 2:
            case["bias"] = normal(g, fan_out).bfloat16()
        gpu = {name: value.cuda() for name, value in case.items()}
        x, weight = gpu["x"].requires_grad_(), gpu["weight"].requires_grad_()
        y = torch.nn.functional.linear(x, weight, gpu.get("bias"))
        y.backward(gpu["dy"])
        case |= {"y": y.detach(), "dx": x.grad, "dw": weight.grad}
        with torch.no_grad():
            case["y32"] = torch.mm(x, weight.t(), out_dtype=torch.float32)
            case["dx32"] = torch.mm(gpu["dy"], weight, out_dtype=torch.float32)
            case["dw32"] = torch.mm(gpu["dy"].t(), x, out_dtype=torch.float32)
        results[f"{tokens}-{fan_in}-{fan_out}-{kind}"] = {name: value.cpu() for name, value in case.items()}
    torch.save(results, args.out)


if __name__ == "__main__":
    main()
