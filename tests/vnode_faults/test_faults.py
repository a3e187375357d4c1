# SPDX-License-Identifier: Apache-2.0
"""A program in which a call fails does the same with and without libb200opt.so. All calls: tools/check --long faults, and
--long pool-faults."""
import re

import pytest

import faults
import pool_faults


# What the pool of device memory has to know, most of it rare. tests/pool calls what the node serves; test_every_function makes each fail.
ONLY_FOR_THE_POOL = {
    "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxSynchronize_v2", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2",
    "cuMemGetHandleForAddressRange", "cuMemcpyPeer", "cuMemcpyPeerAsync", "cuPointerGetAttributes", "cuPointerSetAttribute",
    "cuStreamBeginCaptureToGraph", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "ncclCommWindowRegister",
}


@pytest.mark.parametrize("program", faults.PROGRAMS)
def test_faults(program):
    """Each function's first and last call, and every one that allocates; each function's first call with the end of the context."""
    cases, wrong = faults.differences(program, everything=False)
    assert cases > 100
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("arm", pool_faults.ARMS)
def test_faults_with_the_pool(arm):
    """The first, a middle and the last call of each function that the pool calls in its own way."""
    cases, wrong = pool_faults.differences(arm, everything=False)
    assert cases > 80
    assert not wrong, "\n".join(wrong[:20])


def test_the_programs_make_every_call_that_the_library_intercepts():
    made = {function for program in faults.PROGRAMS for function, _ in faults.call_counts(program, "bare")}
    table = (faults.ROOT / "interpose" / "symbols.def").read_text()
    intercepted = set(re.findall(r"^B200_(?:CUDART|CUDA|CUBLAS|CUBLASLT|NCCL)\([^,]+, *(\w+),", table, re.M))
    assert len(intercepted) > 60
    unmade = {name.removesuffix("_ptsz").removesuffix("_ptds") for name in intercepted} - made
    assert unmade - ONLY_FOR_THE_POOL == {"cuMemAllocFromPoolAsync"} - made


def test_every_function_of_every_stand_in():
    """Called without arguments, three times, each of the calls made to fail in turn."""
    names = faults.hooked_functions()
    assert len(names) > 700
    bare, observed = faults.sweep("bare", names), faults.sweep("observed", names)
    lines = bare[0].splitlines()
    assert len(lines) == 4 * len(names)
    for name in names:
        if faults.can_fail(name.removeprefix("p")):
            for call in (1, 2, 3):
                results = next(line for line in lines if line.startswith(f"{name} {call}:")).split()[2:]
                assert results[call - 1] == "77", f"call {call} of {name} did not fail: {results}"
    assert bare == observed
