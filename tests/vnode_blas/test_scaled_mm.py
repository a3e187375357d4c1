# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own scaled_mm, in every form that reaches cuBLASLt, on the virtual node: against FP64 on the CPU, where scales are laid
out as torchao does it. Start by tests/aten/run; B200OPT_VNODE_GPU says which forms there are."""
import ctypes
import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.functional import ScalingType, SwizzleType

E4M3, E5M2, BF16, F16, F32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float32
DROPS_SCALE_OF_RESULT = torch.__version__.startswith("2.10.")  # takes scale_result and does not hand it on
CAPABILITY = torch.cuda.get_device_capability()
blackwell = pytest.mark.skipif(CAPABILITY < (10, 0), reason="block scales are Blackwell's")
hopper = pytest.mark.skipif(CAPABILITY != (9, 0), reason="vector scales of cuBLASLt are Hopper's")
# PyTorch asks for multiples of 16 of N and K; M is free. K = 48: a block of 16; 160: a tile of one block.
SHAPES = [(1, 16, 32), (17, 48, 64), (130, 144, 160), (64, 32, 48)]
UNIT = {BF16: 2**-8, F16: 2**-11, F32: 2**-24, E4M3: 2**-4, E5M2: 2**-3}


@pytest.fixture(autouse=True)
def same_numbers_and_no_race():
    torch.manual_seed(7)
    races = ctypes.CDLL("libb200vnode.so").vnode_race_count
    races.restype = ctypes.c_uint64
    before = races()
    yield
    torch.cuda.synchronize()
    assert races() == before, "the node reported a race"


def blocked(scales):
    """Rows × blocks to 128×4 tiles, as torchao.prototype.mx_formats.utils.to_blocked; padding is zero."""
    rows, columns = scales.shape
    padded = torch.zeros((rows + 127) // 128 * 128, (columns + 3) // 4 * 4, dtype=scales.dtype)
    padded.view(torch.uint8)[:rows, :columns] = scales.view(torch.uint8)
    tiles = padded.view(torch.uint8).view(-1, 128, padded.shape[1] // 4, 4).permute(0, 2, 1, 3).reshape(-1, 4, 32, 4)
    return tiles.transpose(1, 2).reshape(-1).view(scales.dtype)


def narrow(rows, k, dtype=E4M3):
    return (torch.randn(rows, k) * 2).to(dtype)


def fp4(rows, k):
    """Packed bytes and their values."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    codes = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    return packed.view(torch.float4_e2m1fn_x2), table[codes.int()]


def close(found, a, b, k, bias=None, scale=1.0):
    """`found` is a · bᵀ (+ bias), times `scale`: FP32 accumulation and one rounding."""
    want, magnitude = a @ b.t(), a.abs() @ b.t().abs()
    if bias is not None:
        want, magnitude = want + bias.double(), magnitude + bias.double().abs()
    want, magnitude = want * scale, magnitude * abs(scale)
    if found.dtype in (E4M3, E5M2):
        want = want.clamp(-torch.finfo(found.dtype).max, torch.finfo(found.dtype).max)
    error = (found.double().cpu() - want).abs()
    # Scales of vectors are FP32 numbers that are multiplied in with a rounding each.
    bound = (k + 8) * 2**-24 * magnitude + 1.01 * UNIT[found.dtype] * want.abs() + (2**-10 if found.dtype == E4M3 else 1e-7)
    assert bool((error <= bound).all()), f"off by {(error / bound).max().item():.3g} times the bound"


def values(data, factors, run):
    """Numbers with their scales, FP64."""
    rows, k = data.shape
    return data.double() * factors.double().repeat_interleave(run, 1)[:, :k]


@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)])
@pytest.mark.parametrize("out, bias_type", [(BF16, None), (BF16, BF16), (F16, F16), (F32, None), (E4M3, None), (E4M3, BF16)])
def test_tensorwise(m, n, k, types, out, bias_type):
    a, b = narrow(m, k, types[0]), narrow(n, k, types[1])
    scale_a, scale_b, scale_d = torch.tensor(0.25), torch.tensor(0.375), torch.tensor(2.0)
    bias = torch.randn(n).to(bias_type) if bias_type else None
    scaled = 2.0 if out == E4M3 and not DROPS_SCALE_OF_RESULT else 1.0
    for fast in (False, True):
        found = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=scale_a.cuda(), scale_b=scale_b.cuda(), out_dtype=out,
                                 bias=None if bias is None else bias.cuda(), use_fast_accum=fast,
                                 scale_result=scale_d.cuda() if out == E4M3 else None)
        close(found, a.double() * 0.25, b.double() * 0.375, k, bias, scaled)


def mx(rows, k, dtype=E4M3):
    data, runs = narrow(rows, k, dtype), (k + 31) // 32
    exponents = torch.randint(121, 131, (rows, runs), dtype=torch.uint8)
    return data, exponents.view(torch.float8_e8m0fnu), values(data, 2.0 ** (exponents.double() - 127), 32)


@blackwell
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)])
@pytest.mark.parametrize("out, bias_type", [(BF16, None), (BF16, BF16), (F16, F16), (F32, None)])
def test_mxfp8(m, n, k, types, out, bias_type):
    (a, scale_a, wide_a), (b, scale_b, wide_b) = mx(m, k, types[0]), mx(n, k, types[1])
    bias = torch.randn(n).to(bias_type) if bias_type else None
    found = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=blocked(scale_a).cuda(), scale_b=blocked(scale_b).cuda(),
                             out_dtype=out, bias=None if bias is None else bias.cuda())
    close(found, wide_a, wide_b, k, bias)


@blackwell
def test_mxfp8_scales_in_rows_are_wrong():
    """The same call with scales that are not in tiles: other numbers, and by far."""
    (a, scale_a, wide_a), (b, scale_b, wide_b) = mx(128, 256), mx(128, 256)
    right = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=blocked(scale_a).cuda(), scale_b=blocked(scale_b).cuda(), out_dtype=F32)
    close(right, wide_a, wide_b, 256)
    rows = scale_a.view(torch.uint8).reshape(-1).view(torch.float8_e8m0fnu)
    wrong = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=rows.cuda(), scale_b=blocked(scale_b).cuda(), out_dtype=F32)
    assert (wrong - right).norm() > 0.5 * right.norm()


def nv(rows, k):
    packed, data = fp4(rows, k)
    scales = (torch.rand(rows, k // 16) * 4 + 0.1).to(E4M3)
    return packed, scales, values(data, scales.double(), 16)


@blackwell
@pytest.mark.parametrize("m, n, k", [(1, 16, 32), (17, 48, 64), (130, 144, 160)])
@pytest.mark.parametrize("out, bias_type", [(BF16, None), (BF16, BF16), (F16, F16), (F32, None)])
def test_nvfp4(m, n, k, out, bias_type):
    (a, scale_a, wide_a), (b, scale_b, wide_b) = nv(m, k), nv(n, k)
    bias = torch.randn(n).to(bias_type) if bias_type else None
    found = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=blocked(scale_a).cuda(), scale_b=blocked(scale_b).cuda(),
                             out_dtype=out, bias=None if bias is None else bias.cuda())
    close(found, wide_a, wide_b, k, bias)


@blackwell
def test_nvfp4_with_scales_of_tensors():
    """Two levels: the tensors' own scales go into alpha, which is then in device memory."""
    (a, scale_a, wide_a), (b, scale_b, wide_b) = nv(48, 64), nv(32, 64)
    recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
    swizzle = [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE]
    found = F.scaled_mm(a.cuda(), b.cuda().t(), [blocked(scale_a).cuda(), torch.tensor(0.5).cuda()], recipe,
                        [blocked(scale_b).cuda(), torch.tensor(0.25).cuda()], recipe, swizzle, swizzle, output_dtype=BF16)
    close(found, wide_a * 0.5, wide_b * 0.25, 64)


@hopper
@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("bias_type", [None, BF16])
def test_rowwise(m, n, k, bias_type):
    a, b = narrow(m, k), narrow(n, k)
    scale_a, scale_b = torch.rand(m, 1) + 0.5, torch.rand(n, 1) + 0.5
    bias = torch.randn(n).to(bias_type) if bias_type else None
    found = torch._scaled_mm(a.cuda(), b.cuda().t(), scale_a=scale_a.cuda(), scale_b=scale_b.t().cuda(), out_dtype=BF16,
                             bias=None if bias is None else bias.cuda())
    close(found, values(a, scale_a, k), values(b, scale_b, k), k, bias)


@hopper
@pytest.mark.parametrize("types", [(1, 1), (1, 128), (128, 1)])
def test_blocks_of_128(types):
    m, n, k = 256, 128, 384
    a, b = narrow(m, k), narrow(n, k)

    def scales(rows, block):
        factors = torch.rand((rows + block - 1) // block, k // 128) + 0.5
        wide = factors.repeat_interleave(block, 0)
        # 1×128: M-major; 128×128: K-major, a multiple of 4 along K.
        if block == 1:
            return factors.t().contiguous().t(), wide
        padded = torch.zeros(factors.shape[0], (k // 128 + 3) // 4 * 4)
        padded[:, : k // 128] = factors
        return padded.t(), wide

    (scale_a, wide_a), (scale_b, wide_b) = scales(m, types[0]), scales(n, types[1])

    def on_device(scale):
        strided = torch.empty_strided(scale.shape, scale.stride(), device="cuda")
        return strided.copy_(scale)

    def recipe(block):
        return ScalingType.BlockWise1x128 if block == 1 else ScalingType.BlockWise128x128

    found = F.scaled_mm(a.cuda(), b.cuda().t(), on_device(scale_a), recipe(types[0]), on_device(scale_b), recipe(types[1]),
                        output_dtype=BF16)
    close(found, values(a, wide_a, 128), values(b, wide_b, 128), k)


@pytest.mark.parametrize("form", ["tensorwise", "mxfp8"])
def test_in_a_graph(form):
    """Captured once, replayed with other operands in the same memory."""
    if form == "mxfp8" and CAPABILITY < (10, 0):
        pytest.skip("block scales are Blackwell's")
    made = [mx(64, 96), mx(32, 96)] if form == "mxfp8" else [(narrow(r, 96), torch.tensor(0.5), None) for r in (64, 32)]
    lay = blocked if form == "mxfp8" else (lambda scale: scale)
    a, b = (x[0].cuda() for x in made)
    scale_a, scale_b = (lay(x[1]).cuda() for x in made)
    torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=BF16)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=BF16)
    for _ in range(2):
        fresh = [mx(64, 96), mx(32, 96)] if form == "mxfp8" else [(narrow(r, 96), torch.tensor(0.5), None) for r in (64, 32)]
        for target, scale, (data, factor, _wide) in zip((a, b), (scale_a, scale_b), fresh):
            target.view(torch.uint8).copy_(data.view(torch.uint8))
            scale.view(torch.uint8).copy_(lay(factor).view(torch.uint8)) if form == "mxfp8" else scale.copy_(factor)
        graph.replay()
        wide = [x[2] if x[2] is not None else x[0].double() * 0.5 for x in fresh]
        close(found, *wide, 96)


REFUSED = [
    (dict(a=E5M2, b=E5M2, out=BF16), "two E5M2 operands"),
    (dict(a=E4M3, b=E4M3, out=BF16, bias=F16), "FP16 bias of a BF16 result"),
    (dict(a=E4M3, b=E4M3, out=E5M2), "E5M2 of E4M3"),
]


@pytest.mark.parametrize("what, why", REFUSED, ids=[why for _, why in REFUSED])
def test_refused(what, why):
    """What PyTorch or cuBLASLt does not take is an error of the call, and the next call works."""
    a, b = narrow(16, 32, what["a"]).cuda(), narrow(16, 32, what["b"]).cuda()
    one = torch.ones((), device="cuda")
    bias = torch.zeros(16, dtype=what["bias"], device="cuda") if "bias" in what else None
    with pytest.raises((RuntimeError, ValueError)):
        torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=what["out"], bias=bias)
    torch._scaled_mm(narrow(16, 32).cuda(), narrow(16, 32).cuda().t(), scale_a=one, scale_b=one, out_dtype=BF16)


@pytest.mark.parametrize("layouts", list(itertools.product("nt", repeat=2)))
def test_other_layouts(layouts):
    """PyTorch makes what is not TN so, or refuses."""
    a, b = narrow(32, 64), narrow(48, 64)
    left = a.cuda() if layouts[0] == "n" else a.t().contiguous().t().cuda()
    right = b.cuda().t() if layouts[1] == "n" else b.t().contiguous().cuda()
    one = torch.ones((), device="cuda")
    if layouts == ("n", "n"):
        close(torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=BF16), a.double(), b.double(), 64)
        return
    try:
        found = torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=BF16)
    except (RuntimeError, ValueError):
        return
    close(found, a.double(), b.double(), 64)
