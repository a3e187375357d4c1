# SPDX-License-Identifier: Apache-2.0
"""Each way by which a program can reach CUDA: what the program sees is the same with and without the library, and what the
library sees is what the program did."""
import pytest

from shim import ARMS, CUDA_MAJORS, CUDA_SUFFIX, HERE, STANDINS, environment, owners, read_logs, run, total

PLUGIN = str(HERE / "libshim_plugin.so")
VICTIM = str(HERE / "shim_victim")
MIB = 1 << 20

every_cuda = pytest.mark.parametrize("cuda", CUDA_MAJORS)


def three_arms(command, tmp_path, preload=()):
    """Runs the command in all arms; the same output and status in each. Returns the records of the observed one."""
    results = {}
    for arm in ARMS:
        logs = tmp_path / arm
        results[arm] = run(command, environment(arm, logs, preload))
    bare = results["bare"]
    for arm in ("off", "observed"):
        assert (results[arm].returncode, results[arm].stdout) == (bare.returncode, bare.stdout), arm
        assert results[arm].stderr == bare.stderr, arm
    assert read_logs(tmp_path / "off") == []
    logs = read_logs(tmp_path / "observed")
    return bare, (logs[0] if logs else [])


def check_sequence(records):
    """The calls of sequence.h, to the number."""
    assert total(records, "cudaMalloc") == 4
    assert total(records, "cudaMalloc", "errors") == 1
    assert total(records, "cudaFree") == 4
    assert total(records, "cudaFree", "errors") == 1
    assert total(records, "cudaMemcpy") == 3
    gemms = [r for r in records if r["t"] == "gemm"]
    assert len(gemms) == 1
    expected = dict(api="gemmex", role="fprop", ta="T", tb="N", m=16, n=8, k=4, batch=1, a="f32", b="f32", d="f32", compute="f32",
                    epilogue="none", calls=1, flops=2 * 16 * 8 * 4)
    assert {k: gemms[0][k] for k in expected} == expected
    colls = [r for r in records if r["t"] == "coll"]
    assert [(r["op"], r["dtype"], r["nranks"], r["calls"], r["bytes"]) for r in colls] == [("AllReduce", "f32", 1, 1, 512)]
    assert records[-1]["t"] == "end"


@every_cuda
def test_linked(tmp_path, cuda):
    bare, records = three_arms([str(HERE / f"shim_linked{CUDA_SUFFIX[cuda]}")], tmp_path)
    assert bare.returncode == 7 and "driver 0, errno 4711" in bare.stdout
    check_sequence(records)
    held = owners(records)
    assert held["pytorch"]["allocs"] == 3 and held["pytorch"]["frees"] == 3 and held["pytorch"]["current"] == 0
    assert held["pytorch"]["failed"] == 1
    assert held["pytorch"]["peak"] == 8 * MIB
    assert held["other"] == dict(allocs=1, frees=1, failed=0, current=0, peak=6 * MIB)
    assert held["nccl"]["current"] == 0 and held["nccl"]["peak"] > 0


def test_linked_with_standins_preloaded(tmp_path):
    libraries = [STANDINS / name for name in ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1", "libcublasLt.so.13",
                                              "libcublas.so.13", "libnccl.so.2")]
    _, records = three_arms([str(HERE / "shim_linked")], tmp_path, libraries)
    check_sequence(records)


@every_cuda
def test_loaded_with_rtld_local(tmp_path, cuda):
    plugin = str(HERE / f"libshim_plugin{CUDA_SUFFIX[cuda]}.so")
    bare, records = three_arms([VICTIM, "local", plugin], tmp_path)
    assert bare.returncode == 0 and "gemm 0 " in bare.stdout
    check_sequence(records)


def test_deepbind_is_missed_and_harmless(tmp_path):
    """RTLD_DEEPBIND puts the vendor's symbols before any preload. The driver is still found by dlsym, so memory is seen."""
    bare, records = three_arms([VICTIM, "deepbind", PLUGIN], tmp_path)
    assert bare.returncode == 0 and "gemm 0 " in bare.stdout
    assert total(records, "cudaMalloc") == 0
    assert not [r for r in records if r["t"] == "gemm"]


def test_dlsym(tmp_path):
    bare, records = three_arms([VICTIM, "dlsym"], tmp_path)
    assert "driver 0" in bare.stdout and "unknown name: not found" in bare.stdout
    assert total(records, "cuMemAlloc_v2") == 1 and total(records, "cuMemFree_v2") == 1
    assert owners(records)["other"]["peak"] == 10 * MIB


def test_cu_get_proc_address(tmp_path):
    bare, records = three_arms([VICTIM, "procaddress"], tmp_path)
    assert "itself: 0 same" in bare.stdout
    assert total(records, "cuMemAlloc_v2") == 1 and total(records, "cuMemFree_v2") == 1
    assert total(records, "cuGetProcAddress_v2") >= 4


def test_cuda_get_driver_entry_point(tmp_path):
    libraries = [STANDINS / "libb200vnode.so", STANDINS / "libcudart.so.13", STANDINS / "libcuda.so.1"]
    bare, records = three_arms([VICTIM, "entrypoint"], tmp_path, libraries)
    assert "entry points 0 0" in bare.stdout
    assert total(records, "cuMemAlloc_v2") == 1 and total(records, "cuMemFree_v2") == 1


def test_rtld_next_depends_on_the_caller(tmp_path):
    bare, _ = three_arms([VICTIM, "chain"], tmp_path)
    assert bare.stdout == "a then b\n"


def test_without_any_cuda_library(tmp_path):
    bare, records = three_arms([VICTIM, "missing"], tmp_path)
    assert bare.stdout == "cudaMalloc 302\n" and records == []


def test_nothing_is_asked_while_a_stream_is_captured(tmp_path):
    libraries = [HERE / "libshim_capture.so"] + [STANDINS / name for name in (
        "libb200vnode.so", "libcudart.so.13", "libcuda.so.1", "libnccl.so.2")]
    result = run([VICTIM, "capture"], environment("observed", tmp_path, libraries))
    assert result.stdout == "captured 0\n"
    assert "asked\n" in result.stderr, "the driver is asked for its memory before and after"
    assert "asked while capturing" not in result.stderr


@pytest.mark.parametrize("stacks", ["on", "off"])
def test_native_stacks(tmp_path, stacks):
    result = run([str(HERE / "shim_linked")], environment("observed", tmp_path, B200OPT_MEMORY_STACKS=stacks))
    assert result.returncode == 7
    found = [r for r in read_logs(tmp_path)[0] if r["t"] == "stack"]
    if stacks == "off":
        assert not found
        return
    assert sorted(r["bytes"] for r in found if r["owner"] == "pytorch") == [2 * MIB, 2 * MIB, 4 * MIB]
    assert all("shim_linked+0x" in r["frames"] for r in found if r["owner"] == "pytorch")


def test_finding_functions_is_no_use_of_cuda(tmp_path):
    """Libraries look the driver's functions up when they are loaded, also on machines without a GPU: nothing starts."""
    result = run([VICTIM, "lookup"], environment("observed", tmp_path))
    assert result.stdout == "found 0\n"
    assert not list(tmp_path.iterdir())
