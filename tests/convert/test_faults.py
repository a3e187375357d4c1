# SPDX-License-Identifier: Apache-2.0
"""A conversion that fails is not seen: every call that the library makes fails once, and each GEMM has the numbers of its
original precision or of a conversion that went well, and a shape that has fallen back stays so."""
import collections
import os
import pathlib
import re
import subprocess
import tempfile

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"])
PROGRAM = BUILD / "tests" / "convert" / "convert"
LONG = os.environ.get("B200_LONG") == "1"
FORMATS = ("fp8", "mxfp8")
# Not vendor calls that give a status.
NO_STATUS = ("cublasLtGetVersion",)
# Calls that load the kernels into a GPU: without them nothing is converted.
OF_ALL = ("cuModule", "cuCtxGetDevice", "cuDeviceGet", "cuThreadExchangeStreamCaptureMode")


def run(precision, suite="faults", **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    with tempfile.TemporaryDirectory() as logs:
        env.update(LD_PRELOAD=str(BUILD / "libb200opt.so"), B200OPT_LOG_DIR=logs, B200OPT_PRECISION=precision, B200OPT_STRATEGY="always",
                   OMP_NUM_THREADS="1", **more)
        return subprocess.run([PROGRAM, "fp8", suite], env=env, capture_output=True, text=True, timeout=300)


def hashes(result):
    """[(case, hash of its result)] in order."""
    return re.findall(r"^ok (.*?) \| .* hash ([0-9a-f]{16})$", result.stdout, re.M)


def call_counts(precision, suite="faults", **more):
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        run(precision, suite, B200OPT_VNODE_TRACE=f"{folder}/", **more)
        for path in pathlib.Path(folder).glob("*.trace"):
            counts.update(line.split()[1] for line in path.read_text().splitlines())
    return counts


def status_for(function):
    if function.startswith("cublas"):
        return 15 if "Heuristic" in function else 13
    return 2 if re.search("Alloc|Create|Reserve|Map$", function) else 719


def chosen(calls):
    return range(1, calls + 1) if LONG else sorted(n for n in {1, 2, calls // 2, calls - 1, calls} if 1 <= n <= calls)


@pytest.fixture(scope="module", params=FORMATS)
def arms(request):
    precision = request.param
    native, converted = run("native"), run(precision)
    assert native.returncode == 0 and converted.returncode == 0, native.stdout + converted.stdout
    return precision, dict(hashes(native)), dict(hashes(converted)), hashes(converted), call_counts("native", B200OPT="off"), call_counts(precision)


def test_every_own_call_may_fail(arms):
    precision, native, converted, order, before, after = arms
    assert any(native[case] != converted[case] for case in native), "nothing was converted"
    wrong, tried, functions = [], 0, set()
    for function, calls in sorted(after.items()):
        own = calls - before[function]
        if function in NO_STATUS or own <= 0:
            continue
        for n in chosen(calls):
            fault = f"{function}:{n}:{status_for(function)}"
            result = run(precision, B200OPT_VNODE_FAULT=fault)
            tried += 1
            functions.add(function)
            if "injected fault" not in result.stderr:
                wrong.append(f"{fault}: met no call")
            elif before[function] and f"WRONG status {status_for(function)} of {function}(" in result.stdout and function != "cublasLtMatmul":
                pass  # it was the job's own call, and the job has seen it
            elif result.returncode != 0:
                wrong.append(f"{fault}: exit status {result.returncode}: {result.stdout[-300:]}")
            else:
                wrong += [f"{fault}: {text}" for text in judge(fault, result, native, converted, order)]
    print(f"{precision}: {tried} faults in {len(functions)} functions: {', '.join(sorted(functions))}")
    assert not wrong, "\n".join(wrong[:40])


def judge(fault, result, native, converted, order):
    """What is wrong with the results of a run in which one call failed: from that call on, the shape that it struck has the numbers of
    an unconverted run, and nothing else changes; where it struck what belongs to all shapes, all do."""
    got = hashes(result)
    if [case for case, _ in got] != [case for case, _ in order]:
        return ["other cases than without the fault"]
    fallen, wrong = set(), []
    remembers = not fault.startswith("cublasLt") or "GetAttribute" not in fault  # a call whose shape is not known cannot be remembered by it
    for case, value in got:
        if native[case] == converted[case]:
            continue
        if value == native[case]:
            fallen.add(case)
        elif value != converted[case]:
            wrong.append(f"{case}: neither native nor converted")
        elif case in fallen and remembers:
            wrong.append(f"{case}: converted again after it fell back")
    if len(fallen) > 1 and not fault.startswith(OF_ALL) and "self-test" not in result.stderr:
        wrong.append(f"{len(fallen)} shapes fell back")
    return wrong


@pytest.mark.parametrize("suite,functions,more", [
    ("cuts", ("cublasLtMatmul", "cuLaunchKernel"), {"B200OPT_WORKSPACE_MB": "1"}),
    ("faults", ("cuLaunchKernel", "cublasLtMatmul", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventQuery"), {"B200OPT_AUDIT_EVERY": "2"}),
    ("graph", ("cuLaunchKernel", "cublasLtMatmul", "cuMemsetD8Async", "cuStreamGetCaptureInfo_v2", "cuMemCreate"), {})])
def test_pieces_audits_and_graphs(suite, functions, more):
    """A GEMM of which some pieces are done, one that is looked at, and one that is captured. The program checks each within its bounds;
    "not captured" compares the bits of a GEMM outside with those in a graph: they are others where one of the two fell back."""
    before, after = call_counts("native", suite, B200OPT="off"), call_counts("fp8", suite, **more)
    for function in functions:
        assert after[function] > before[function], function
        calls = [after[function] // 2, after[function] - 1] if suite == "cuts" and not LONG else chosen(after[function])
        for n in calls:
            result = run("fp8", suite, B200OPT_VNODE_FAULT=f"{function}:{n}:{status_for(function)}", **more)
            own = before[function] and f"WRONG status {status_for(function)} of {function}(" in result.stdout
            right = result.returncode in (0, 1) and not re.search("^WRONG (?!not captured)", result.stdout, re.M)
            assert "injected fault" in result.stderr and (own or right), (function, n, result.stdout[-500:], result.stderr)


@pytest.mark.parametrize("n", range(1, 5))
def test_no_memory(arms, n):
    """Refused at each place: for a while nothing that needs it is converted, and the rest of the job goes on."""
    precision, native, converted = arms[:3]
    for function in ("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemHostAlloc"):
        for call in (n, "*"):
            result = run(precision, B200OPT_VNODE_FAULT=f"{function}:{call}:2")
            assert result.returncode == 0 and all(value in (native[case], converted[case]) for case, value in hashes(result)), (function, call)
            assert call != "*" or function == "cuMemHostAlloc" or dict(hashes(result)) == native, function


def test_unsupported_everything():
    native = run("native", B200OPT="off", B200OPT_VNODE_GPU="a100")
    for precision in FORMATS:
        for strike in ({}, {"B200OPT_VNODE_FAULT": "cublasLtMatmulAlgoGetHeuristic:*:15"}):
            result = run(precision, B200OPT_VNODE_GPU="a100", **strike)
            assert result.returncode == 0 and hashes(result) == hashes(native) != []


def test_everything_fails_for_ever(arms):
    precision, native = arms[:2]
    for function in ("cublasLtMatmulAlgoGetHeuristic", "cuLaunchKernel", "cuMemCreate", "cuModuleLoadData", "cuStreamGetCaptureInfo_v2"):
        result = run(precision, B200OPT_VNODE_FAULT=f"{function}:*:{status_for(function)}")
        assert result.returncode == 0 and dict(hashes(result)) == native, function
