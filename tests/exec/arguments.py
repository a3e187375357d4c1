# SPDX-License-Identifier: Apache-2.0
"""What the kernels take: mirrors interpose/exec/quant.h."""
import ctypes

K_FAST, K_SLOW = range(2)


class Operand(ctypes.Structure):
    _fields_ = [("src", ctypes.c_void_p), ("ld", ctypes.c_int64), ("outer", ctypes.c_int64), ("k", ctypes.c_int64),
                ("type", ctypes.c_uint8), ("major", ctypes.c_uint8), ("zero", ctypes.c_uint8 * 6)]


class Scale(ctypes.Structure):
    _fields_ = [("amax_bits", ctypes.c_uint32), ("done", ctypes.c_uint32), ("scale", ctypes.c_float), ("inverse", ctypes.c_float)]


class AmaxArgs(ctypes.Structure):
    _fields_ = [("in_", Operand), ("scale", ctypes.c_void_p), ("fp_max", ctypes.c_float), ("zero", ctypes.c_uint32)]


class CastArgs(ctypes.Structure):
    _fields_ = [("in_", Operand), ("dst", ctypes.c_void_p), ("dst_ld", ctypes.c_int64), ("scale", ctypes.c_void_p),
                ("guard", ctypes.c_void_p), ("narrow", ctypes.c_uint8), ("zero", ctypes.c_uint8 * 7)]


class MxArgs(ctypes.Structure):
    _fields_ = [("in_", Operand), ("dst", ctypes.c_void_p), ("dst_ld", ctypes.c_int64), ("scales", ctypes.c_void_p),
                ("guard", ctypes.c_void_p), ("narrow", ctypes.c_uint8), ("rounding", ctypes.c_uint8), ("zero", ctypes.c_uint8 * 6)]


assert (ctypes.sizeof(AmaxArgs), ctypes.sizeof(CastArgs), ctypes.sizeof(MxArgs)) == (56, 80, 80)
