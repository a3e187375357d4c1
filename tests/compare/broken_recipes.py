# SPDX-License-Identifier: Apache-2.0
"""The demo job on CPU with an FP8 recipe that has a defect: curves that a comparison must not call equivalent.

    torchrun --nproc-per-node 2 broken_recipes.py DEFECT TRAIN_OPTION…

  nosat    per-tensor FP8, scales twice too large, and what is too large for the format becomes NaN
  scale1   per-tensor FP8 with every scale 1
  floor    MXFP8 with the scales of the OCP specification, rounded down: the largest of a block may saturate
"""
import pathlib
import runpy
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import emulation  # noqa: E402

whole_cast, whole_per_tensor = emulation.cast, emulation.per_tensor


def without_saturation(values, element):
    return torch.where(values.abs() <= emulation.FORMATS[element][1], whole_cast(values, element), float("nan"))


def twice_too_large(x, element):
    x = x.float()
    scale = 2 * emulation.FORMATS[element][1] / x.abs().max().clamp(min=1e-30)
    return without_saturation(x * scale, element), 1 / scale


def unscaled(x, element):
    return whole_cast(x.float(), element), torch.tensor(1.0)


def rounded_down(x):
    blocks = x.float().unflatten(-1, (-1, emulation.BLOCK))
    _, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True))
    exponent = (exponent - 9).clamp(-127, 127)
    return torch.ldexp(whole_cast(torch.ldexp(blocks, -exponent), "e4m3"), exponent).flatten(-2)


DEFECTS = {"nosat": ("fp8", "per_tensor", twice_too_large), "scale1": ("fp8", "per_tensor", unscaled), "floor": ("mxfp8", "per_block", rounded_down)}
recipe, name, function = DEFECTS[sys.argv[1]]
setattr(emulation, name, function)
emulation.install(recipe)
sys.argv = [str(emulation.TRAIN), *sys.argv[2:]]
runpy.run_path(str(emulation.TRAIN), run_name="__main__")
