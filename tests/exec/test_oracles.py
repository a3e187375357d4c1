# SPDX-License-Identifier: Apache-2.0
"""The kernels against other people's conversions: PyTorch's own casts, ml_dtypes and torchao."""
import pathlib
import sys

import numpy as np
import pytest
import torch

import kernels as k

sys.path.append(str(pathlib.Path(sys.prefix) / "oracles"))  # torchao: requirements_apart.txt

TORCH = {k.BF16: torch.bfloat16, k.F16: torch.float16, k.F32: torch.float32}
FP8 = {k.E4M3: torch.float8_e4m3fn, k.E5M2: torch.float8_e5m2}
SCALES = [1.0, 448.0, 3.1415926e-3, 1.7e5, 2.0**100, 2.0**-100, 2.0**126]


def every(type_):
    """All inputs of 16 bits; for FP32 every exponent with mantissas around ties, and random ones."""
    if type_ != k.F32:
        return np.arange(65536, dtype=np.uint16)
    random = np.random.default_rng(5).integers(0, 1 << 32, 400_000, np.uint32)
    mantissas = np.array([0, 1, 0x7FFFF, 0x80000, 0x80001, 0xFFFFF, 0x100000, 0x100001, 0x180000, 0x600000, 0x600001, 0x7FFFFF], np.uint32)
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    patterns = (exponents | mantissas).ravel()
    return np.concatenate([patterns, patterns | 0x80000000, random])


def as_float32(bits, type_):
    return torch.from_numpy(bits.copy()).view(TORCH[type_]).float()


@pytest.mark.parametrize("narrow", FP8, ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("type_", TORCH, ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("scale", SCALES)
def test_cast_like_torch(type_, narrow, scale):
    bits = every(type_)
    x = as_float32(bits, type_)
    y = (x * torch.tensor(scale, dtype=torch.float32)).clamp(-k.FP_MAX[narrow], k.FP_MAX[narrow])
    y[~x.isfinite()] = torch.nan
    expected = y.to(FP8[narrow]).view(torch.uint8).numpy()
    k.same(k.cast(bits[None], type_, narrow, scale)[0], expected, narrow)


@pytest.mark.parametrize("type_", TORCH, ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("narrow", FP8, ids=["e4m3", "e5m2"])
def test_scale_like_torch(type_, narrow):
    for seed in range(40):
        x = torch.randn(1 + seed * 3, 1 + seed * 7, generator=torch.Generator().manual_seed(seed)).mul(10.0 ** (seed % 9 - 4)).to(TORCH[type_])
        scale, inverse = k.tensor_scale(x.view(torch.int16 if type_ != k.F32 else torch.int32).numpy(), type_, narrow)
        amax = x.float().abs().max()
        expected = torch.tensor(k.FP_MAX[narrow]) / amax if amax else torch.tensor(1.0)
        expected = expected.clamp(max=2.0**126)
        assert scale == expected.numpy() and inverse == (1 / expected).numpy()


@pytest.mark.parametrize("narrow", FP8, ids=["e4m3", "e5m2"])
def test_cast_like_ml_dtypes(narrow):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = every(k.F32)
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        y = np.where(np.isfinite(x), np.clip(x, -k.FP_MAX[narrow], k.FP_MAX[narrow]), np.nan).astype(np.float32)
    expected = y.astype(ml_dtypes.float8_e4m3fn if narrow == k.E4M3 else ml_dtypes.float8_e5m2).view(np.uint8)
    k.same(k.cast(bits[None], k.F32, narrow, 1.0)[0], expected, narrow)


@pytest.mark.parametrize("rounding, mode", [(k.RCEIL, "RCEIL"), (k.FLOOR, "FLOOR"), (k.EVEN, "EVEN")])
@pytest.mark.parametrize("type_", [k.BF16, k.F32], ids=["bf16", "f32"])
@pytest.mark.parametrize("narrow", FP8, ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("major", [k.K_FAST, k.K_SLOW], ids=["kfast", "kslow"])
def test_blocks_like_torchao(rounding, mode, type_, narrow, major):
    """On finite data that is not so small that torchao flushes it (vectors.json, crosscheck)."""
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    random = torch.Generator().manual_seed(rounding)
    x = torch.randn(192, 256, generator=random) * torch.exp2(torch.randint(-40, 40, (192, 256), generator=random).float())
    x[17] = 0
    x = x.to(TORCH[type_])
    scales, data = mx_tensor.to_mx(x, FP8[narrow], 32, getattr(config.ScaleCalculationMode, mode))[:2]
    bits = x.view(torch.int16 if type_ == k.BF16 else torch.int32).numpy()
    codes, tiled = k.mx(bits if major == k.K_FAST else bits.T, type_, narrow, rounding, major)
    k.same(codes if major == k.K_FAST else codes.T, data.view(torch.uint8).numpy(), narrow)
    assert (k.linear_scales(tiled, 192, 256) == scales.view(torch.uint8).numpy().reshape(192, 8)).all()
