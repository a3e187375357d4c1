# SPDX-License-Identifier: Apache-2.0
"""The executor's kernels for Python: NumPy arrays of bit patterns in, NumPy arrays of bytes out."""
import ctypes
import os

import numpy as np

from arguments import K_FAST, K_SLOW, AmaxArgs, CastArgs, MxArgs, Operand, Scale

BF16, F16, F32 = range(3)
E4M3, E5M2 = range(2)
RCEIL, FLOOR, EVEN = range(3)
FP_MAX = {E4M3: 448.0, E5M2: 57344.0}
BITS = {BF16: np.uint16, F16: np.uint16, F32: np.uint32}

library = ctypes.CDLL(os.environ["B200_KERNELS"])
library.b200_kernel_blocks.restype = ctypes.c_uint32
library.b200_kernel_blocks.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
library.b200_cpu_run.restype = None
library.b200_cpu_run.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]


def run(kernel, args):
    library.b200_cpu_run(kernel, ctypes.byref(args), library.b200_kernel_blocks(kernel, ctypes.byref(args), 4), None)


def aligned(size, poison=0xA5):
    """`size` bytes of memory that starts at a multiple of 64."""
    memory = np.full(size + 64, poison, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def operand(bits, type_, major):
    """`bits`: a 2-D array of bit patterns, its lines contiguous; what `outer` and k are depends on the major."""
    bits = np.ascontiguousarray(bits, BITS[type_])
    lines, width = bits.shape
    outer, k = (lines, width) if major == K_FAST else (width, lines)
    return bits, Operand(bits.ctypes.data, width, outer, k, type_, major)


def padded(n):
    return (n + 15) // 16 * 16


def tensor_scale(bits, type_, narrow, major=K_FAST, scale=None):
    """(scale, inverse), in a fresh slot unless one is given."""
    bits, in_ = operand(bits, type_, major)
    scale = Scale() if scale is None else scale
    run(library.b200_kernel_amax(type_), AmaxArgs(in_, ctypes.addressof(scale), FP_MAX[narrow]))
    return np.float32(scale.scale), np.float32(scale.inverse)


def cast(bits, type_, narrow, scale, from_=K_FAST, to=K_FAST):
    """FP8 codes, in the destination's own lines."""
    bits, in_ = operand(bits, type_, from_)
    lines, width = bits.shape if from_ == to else bits.shape[::-1]
    dst = aligned(lines * padded(width))
    state = Scale(scale=scale)
    run(library.b200_kernel_cast(type_, from_, to), CastArgs(in_, dst.ctypes.data, padded(width), ctypes.addressof(state), None, narrow))
    return dst.reshape(lines, padded(width))[:, :width]


def mx(bits, type_, narrow, rounding, major=K_FAST):
    """(codes in the source's lines, scales in their tiles, poisoned before)."""
    bits, in_ = operand(bits, type_, major)
    lines, width = bits.shape
    dst = aligned(lines * padded(width))
    scales = aligned((in_.outer + 127) // 128 * 128 * ((in_.k + 127) // 128 * 4), 0xEE)
    run(library.b200_kernel_mx(type_, major), MxArgs(in_, dst.ctypes.data, padded(width), scales.ctypes.data, None, narrow, rounding))
    return dst.reshape(lines, padded(width))[:, :width], scales


def linear_scales(tiled, outer, k):
    """Scales of (row, block) from their tiles, as cuBLASLt reads them."""
    blocks = (k + 31) // 32
    o, b = np.arange(outer)[:, None], np.arange(blocks)[None]
    k_tiles = (blocks + 3) // 4
    return tiled[((o // 128) * k_tiles + b // 4) * 512 + o % 32 * 16 + o % 128 // 32 * 4 + b % 4]


def values(codes, narrow):
    """Codes as float64, by the formats' definition; NaN codes as NaN, the infinities of E5M2 as such."""
    mantissa, bias = (3, 7) if narrow == E4M3 else (2, 15)
    table = []
    for code in range(128):
        exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
        if narrow == E4M3 and code == 0x7F or narrow == E5M2 and code > 0x7C:
            table.append(np.nan)
        elif narrow == E5M2 and code == 0x7C:
            table.append(np.inf)
        elif exponent == 0:
            table.append(fraction * 2.0 ** (1 - bias - mantissa))
        else:
            table.append(((1 << mantissa) + fraction) * 2.0 ** (exponent - bias - mantissa))
    return np.array(table + [-value for value in table])[codes]


def same(seen, expected, narrow):
    """Codes are equal; any NaN equals any other."""
    seen, expected = np.asarray(seen), np.asarray(expected)
    nan = np.isnan(values(expected, narrow))
    wrong = np.where(nan, ~np.isnan(values(seen, narrow)), seen != expected)
    where = np.argwhere(wrong)
    assert not wrong.any(), f"{len(where)} codes differ, the first at {where[0]}: {seen[tuple(where[0])]:02x}, not {expected[tuple(where[0])]:02x}"
