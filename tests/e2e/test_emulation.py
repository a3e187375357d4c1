# SPDX-License-Identifier: Apache-2.0
"""The emulation gives the bytes of tests/exec/vectors.json, which other libraries agreed on."""
import base64
import json
import zlib

import emulation
import pytest
import torch

from conftest import ROOT

VECTORS = json.loads((ROOT / "tests" / "exec" / "vectors.json").read_text())


def unpacked(text):
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)


def bytes_of(text):
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def bf16(raw):
    """From bytes, the most significant of each value first."""
    return raw.view(-1, 2).flip(1).contiguous().view(torch.bfloat16).flatten()


def values_of(codes, element):
    return codes.view(emulation.FORMATS[element][0]).float()


def equal(a, b):
    return torch.equal(a.nan_to_num(nan=1e30), b.nan_to_num(nan=1e30))


@pytest.mark.parametrize("element", emulation.FORMATS)
def test_cast_of_all_bf16_values(element):
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    expected = values_of(unpacked(VECTORS["cast"][element]["all65536_zlib_b64"]), element)
    expected[values.isinf()] = float("nan")  # the table's are the saturating instruction's; the recipes keep Inf visible
    assert equal(emulation.cast(values, element), expected)


@pytest.mark.parametrize("case", VECTORS["per_tensor_quant"], ids=lambda case: f"{case['fmt']}-{case['name']}")
def test_per_tensor(case):
    got, factor = emulation.per_tensor(bf16(bytes_of(case["x"])), case["fmt"])
    assert equal(got, values_of(bytes_of(case["q"]), case["fmt"]))
    assert equal(factor, bytes_of(case["scale_inv"]).flip(0).view(torch.float32)[0])


def expected_blocks(codes, exponents):
    factors = torch.where(exponents == 255, float("nan"), torch.exp2(exponents.double() - 127))
    return (values_of(codes, "e4m3").unflatten(-1, (-1, 32)).double() * factors.unsqueeze(-1)).float().flatten(-2)


@pytest.mark.parametrize("case", VECTORS["mxfp8_blocks"], ids=lambda case: case["name"])
def test_one_block(case):
    expected = expected_blocks(bytes_of(case["rceil_q"]), bytes_of(case["rceil_e"]))
    assert equal(emulation.per_block(bf16(bytes_of(case["x"]))), expected)


@pytest.mark.parametrize("along", ["row", "col"])
def test_blocks_of_a_matrix(along):
    case = VECTORS["mxfp8_2d"]
    x = unpacked(case["x_zlib_b64"]).view(torch.bfloat16).view(case["shape"])
    codes, exponents = unpacked(case[along]["q_zlib_b64"]), bytes_of(case[along]["e"])
    expected = expected_blocks(codes.view(case["shape"]), exponents.view(case["shape"][0], -1))
    assert equal(emulation.per_block(x if along == "row" else x.t()), expected)
