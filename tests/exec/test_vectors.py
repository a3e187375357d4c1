# SPDX-License-Identifier: Apache-2.0
"""The kernels, bit by bit, against vectors.json (made by an independent float64 reference and checked against torchao 0.18,
ml_dtypes 0.6 and torch 2.15; its `crosscheck` says where those differ)."""
import base64
import json
import pathlib
import zlib

import numpy as np
import pytest

import kernels as k

VECTORS = json.loads((pathlib.Path(__file__).parent / "vectors.json").read_text())
FORMATS = {"e4m3": k.E4M3, "e5m2": k.E5M2}


def unhex(text, bytes_each=1):
    return np.frombuffer(bytes.fromhex(text), f">u{bytes_each}").astype(f"u{bytes_each}")


def unpack(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def as_float(text):
    return unhex(text, 4).view(np.float32)[0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("majors", [(k.K_FAST, k.K_FAST), (k.K_SLOW, k.K_SLOW), (k.K_SLOW, k.K_FAST)])
def test_cast_of_every_bf16(name, majors):
    bits = np.arange(65536, dtype=np.uint16)
    expected = np.where(bits & 0x7FFF == 0x7F80, 0x7F, unpack(VECTORS["cast"][name]["all65536_zlib_b64"])).astype(np.uint8)
    seen = k.cast(bits.reshape(256, 256), k.BF16, FORMATS[name], 1.0, *majors)
    k.same(seen, expected.reshape(256, 256) if majors[0] == majors[1] else expected.reshape(256, 256).T, FORMATS[name])


@pytest.mark.parametrize("name", FORMATS)
def test_cast_of_chosen_values(name):
    for key, type_, size in ("readable", k.BF16, 2), ("fp32", k.F32, 4):
        rows = VECTORS["cast"][name][key]
        bits = np.array([int(x, 16) for x, _ in rows], k.BITS[type_])
        expected = np.array([int(q, 16) for _, q in rows], np.uint8)
        infinity = 0x7F80 if size == 2 else 0x7F800000
        expected[(bits & (0x7FFF if size == 2 else 0x7FFFFFFF)) == infinity] = 0x7F
        k.same(k.cast(bits[None], type_, FORMATS[name], 1.0)[0], expected, FORMATS[name])


def test_scale_of_a_tensor():
    for row in VECTORS["per_tensor_scale"]:
        bits = np.zeros((3, 70), np.uint16)
        bits[1, 37] = int(row["amax"], 16)
        scale, inverse = k.tensor_scale(bits, k.BF16, FORMATS[row["fmt"]])
        for seen, expected in (scale, as_float(row["ours"])), (inverse, as_float(row["ours_inv"])):
            assert seen == expected or np.isnan(seen) and np.isnan(expected), f"{row}: {seen}, not {expected}"


def test_slot_is_used_again():
    slot = k.Scale()
    for amax in 3.0, 0.25, 100.0, 0.0, 7.0:
        bits = np.full((40, 40), amax, np.float32).view(np.uint32)
        assert k.tensor_scale(bits, k.F32, k.E4M3, scale=slot)[0] == (np.float32(448) / np.float32(amax) if amax else 1)


@pytest.mark.parametrize("row", VECTORS["per_tensor_quant"], ids=lambda row: f"{row['name']}-{row['fmt']}")
def test_quantised_tensor(row):
    narrow, bits = FORMATS[row["fmt"]], unhex(row["x"], 2)[None]
    scale, inverse = k.tensor_scale(bits, k.BF16, narrow)
    expected = as_float(row["scale"]), as_float(row["scale_inv"])
    assert (scale, inverse) == expected or np.isnan(expected).all() and np.isnan([scale, inverse]).all()
    k.same(k.cast(bits, k.BF16, narrow, scale)[0], unhex(row["q"]), narrow)


@pytest.mark.parametrize("rounding, key", [(k.RCEIL, "rceil"), (k.FLOOR, "floor")])
@pytest.mark.parametrize("major", [k.K_FAST, k.K_SLOW])
def test_exponent_of_every_amax(rounding, key, major):
    expected = unpack(VECTORS["e8m0"][f"{key}_all_nonneg_bf16_amax_zlib_b64"])
    bits = np.zeros((32768, 32), np.uint16)
    bits[np.arange(32768), np.arange(32768) % 32] = np.arange(32768)
    bits[:, 5] |= 0x8000
    _, scales = k.mx(bits if major == k.K_FAST else bits.T, k.BF16, k.E4M3, rounding, major)
    seen = k.linear_scales(scales, 32768, 32)[:, 0]
    where = np.flatnonzero(seen != expected)
    assert not len(where), f"{len(where)} differ, the first for {where[0]:04x}: {seen[where[0]]:02x}, not {expected[where[0]]:02x}"


@pytest.mark.parametrize("rounding, key", [(k.RCEIL, "rceil"), (k.FLOOR, "floor")])
@pytest.mark.parametrize("major", [k.K_FAST, k.K_SLOW])
@pytest.mark.parametrize("row", VECTORS["mxfp8_blocks"], ids=lambda row: row["name"])
def test_block(row, rounding, key, major):
    bits = unhex(row["x"], 2)[None]
    codes, scales = k.mx(bits if major == k.K_FAST else bits.T, k.BF16, k.E4M3, rounding, major)
    assert scales[0] == int(row[f"{key}_e"], 16)
    k.same(codes.ravel(), unhex(row[f"{key}_q"]), k.E4M3)


@pytest.mark.parametrize("direction", ["row", "col"])
def test_matrix(direction):
    """64 × 64, with blocks along its lines and across them; the vectors hold the latter transposed."""
    matrix = VECTORS["mxfp8_2d"]
    bits = unpack(matrix["x_zlib_b64"]).view("<u2").reshape(64, 64)
    codes, scales = k.mx(bits, k.BF16, k.E4M3, k.RCEIL, k.K_FAST if direction == "row" else k.K_SLOW)
    expected = unpack(matrix[direction]["q_zlib_b64"]).reshape(64, 64)
    k.same(codes if direction == "row" else codes.T, expected, k.E4M3)
    assert (k.linear_scales(scales, 64, 64) == unhex(matrix[direction]["e"]).reshape(64, 2)).all()


@pytest.mark.parametrize("major", [k.K_FAST, k.K_SLOW])
@pytest.mark.parametrize("case", VECTORS["scale_layout"]["cases"], ids=lambda case: f"{case['rows']}x{case['k_elems']}")
def test_scale_layout(case, major):
    """A matrix whose blocks have the vectors' scales; the few that no finite FP32 number has (from 247 on) are moved down."""

    def reachable(scale):
        return np.where(scale > 246, scale - 200, scale)

    rows, blocks = case["rows"], case["kblocks"]
    r, b = np.arange(rows)[:, None], np.arange(blocks)[None]
    scale = reachable((131 * r + 17 * b) % 251 + 1)
    bits = np.zeros((rows, blocks, 32), np.float32)
    bits[:, :, 7] = 448 * 2.0 ** (scale - 127.0)
    bits = bits.reshape(rows, blocks * 32)[:, : case["k_elems"]].view(np.uint32)
    _, seen = k.mx(bits if major == k.K_FAST else bits.T, k.F32, k.E4M3, k.RCEIL, major)
    expected = reachable(unpack(case["zlib_b64"]))
    assert len(seen) == len(expected) == case["padded_bytes"]
    where = np.flatnonzero(seen != expected)
    assert not len(where), f"{len(where)} bytes differ, the first at {where[0]}: {seen[where[0]]}, not {expected[where[0]]}"
