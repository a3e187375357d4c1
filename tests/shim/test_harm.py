# SPDX-License-Identifier: Apache-2.0
"""Programs that have nothing to do with CUDA, or end in unusual ways, behave the same with the library preloaded."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from shim import ARMS, BUILD, HERE, LIBRARY, STANDINS, environment, read_logs, run, total

PYTHON = sys.executable
ROOT = pathlib.Path(__file__).resolve().parents[2]

WORKERS = """
import torch, torch.utils.data as data
class Squares(data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.tensor([i * i])
if __name__ == "__main__":
    loader = data.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="{method}")
    print(int(sum(batch.sum() for batch in loader)), torch.cuda.is_available())
"""

COMMANDS = {
    "true": ["true"],
    "false": ["false"],
    "ls": ["ls", "/"],
    "git": ["git", "-C", str(ROOT), "log", "-1", "--format=%H"],
    "sh": ["sh", "-c", "echo one; (echo two; exit 3); echo $?; exit 5"],
    "python": [PYTHON, "-c", "pass"],
    "output": [PYTHON, "-c", "import sys; print('step 1 loss 2.5'); print('err', file=sys.stderr); sys.exit(4)"],
    "os._exit": [PYTHON, "-c", "import os; os.write(1, b'bye'); os._exit(6)"],
    "closed stdout": ["sh", "-c", f"exec 1>&-; {PYTHON} -c \"import os; os.write(2, b'x')\""],
    "cat": ["sh", "-c", "seq 1 20000 | cat | tail -n 1"],
    "threads": [PYTHON, "-c", "import threading as t; a=[t.Thread(target=print, args=(i,)) for i in range(1)]; [x.start() for x in a]"],
}


def arms(command, tmp_path, preload=(), **more):
    results = {arm: run(command, environment(arm, tmp_path / arm, preload, **more)) for arm in ARMS}
    for arm in ("off", "observed"):
        for what in ("returncode", "stdout"):
            assert getattr(results[arm], what) == getattr(results["bare"], what), (arm, what)
        assert without_tracker(results[arm].stderr) == without_tracker(results["bare"].stderr), arm
    return results["bare"]


def without_tracker(text):
    """Python 3.11's resource tracker now and then finds a worker's semaphore leaked that is gone a moment later, also bare."""
    return re.sub(r".*resource_tracker.*\n\s+warnings\.warn.*\n", "", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_programs_without_cuda(name, tmp_path):
    arms(COMMANDS[name], tmp_path)
    assert not list(tmp_path.rglob("*")), "nothing may be written"


def test_the_compiler(tmp_path):
    source = tmp_path / "hello.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 9; }\n')
    for arm in ARMS:
        built = run([os.environ.get("B200_CC", "cc"), str(source), "-o", str(tmp_path / f"hello-{arm}")], environment(arm, tmp_path / "logs"))
        assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
        result = run([str(tmp_path / f"hello-{arm}")], environment(arm, tmp_path / "logs"))
        assert (result.returncode, result.stdout, result.stderr) == (9, "hello\n", "")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers_without_a_gpu(method, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS.format(method=method))
    bare = arms([PYTHON, str(script)], tmp_path / "runs")
    assert bare.returncode == 0 and bare.stdout.startswith(f"{sum(i * i for i in range(64))} ")
    assert not list((tmp_path / "runs").rglob("*.jsonl"))


@pytest.mark.parametrize("arm", ARMS)
def test_sigterm(arm, tmp_path):
    script = "import sys, time; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([PYTHON, "-c", script], env=environment(arm, tmp_path), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("arm", ARMS)
def test_fork_storm(arm, tmp_path):
    """200 children of a process that uses CUDA in two threads."""
    result = run([str(HERE / "shim_storm"), "200"], environment(arm, tmp_path))
    assert (result.returncode, result.stdout) == (0, "200 of 200\n"), result.stderr
    logs = read_logs(tmp_path)
    assert len(logs) == (1 if arm == "observed" else 0), "children that may not use CUDA open no log"
    if logs:
        assert logs[0][-1]["t"] == "end" and total(logs[0], "cudaMalloc") > 0


def test_a_killed_process_leaves_a_readable_log(tmp_path):
    libraries = [STANDINS / name for name in ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1")]
    script = ("import ctypes, time\n"
              "rt = ctypes.CDLL('libcudart.so.13'); p = ctypes.c_void_p()\n"
              "print(rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 21)), flush=True)\n"
              "time.sleep(60)")
    process = subprocess.Popen([PYTHON, "-c", script], env=environment("observed", tmp_path, libraries), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"0\n"
    deadline = time.monotonic() + 20  # what is only counted is written after a second
    while time.monotonic() < deadline and not any(r["t"] == "alloc" for log in read_logs_of(tmp_path) for r in log):
        time.sleep(0.2)
    process.kill()
    process.wait()
    records = read_logs(tmp_path)[0]
    assert records[0]["t"] == "header" and records[-1]["t"] != "end"
    assert any(r["t"] == "alloc" and r["current"] == 1 << 21 for r in records)


def read_logs_of(folder):
    try:
        return read_logs(folder)
    except ValueError:
        return []  # a line is being written


def test_an_unwritable_log_folder_is_said_once(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = run([str(HERE / "shim_linked")], environment("observed", blocked))
    assert result.returncode == 7
    assert len(re.findall(r"^b200opt: no log: .*job is not affected$", result.stderr, re.M)) == 1


# ------------------------------------------------------------------------------------------------- the binary


def readelf(*options):
    return subprocess.run(["readelf", "-W", *options, str(LIBRARY)], capture_output=True, text=True, check=True).stdout


def test_needs_no_cuda_library():
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d"))
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0", "libm.so.6"}


def test_needs_no_glibc_newer_than_2_34():
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", readelf("-V"))}
    assert versions and max(versions) <= (2, 34)


def test_defines_no_version():
    assert "Version definition section" not in readelf("-V"), "a named version node silently stops interposition"


def test_exports_the_table_and_nothing_else():
    table = (ROOT / "interpose" / "symbols.def").read_text()
    macro = set(re.findall(r"^B200_(?:CUDART|CUDA|CUBLAS|CUBLASLT|NCCL|LIBC)\([^,]+, *(\w+),", table, re.M))
    typed = {f"cublas{letter}{suffix}" for letter in "SD" for suffix in ("gemm_v2", "gemm_v2_64", "gemmStridedBatched")}
    exported = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in exported.splitlines()} == macro | typed


def test_hardening():
    dynamic = readelf("-d")
    assert "BIND_NOW" in dynamic or "NOW" in dynamic
    assert "NODELETE" in dynamic
    assert "GNU_RELRO" in readelf("-l")


def test_mutable_state_is_in_a_few_named_objects():
    """One static state; what else is writable is the slots, the pending lines of output, small caches, and what converting needs."""
    symbols = subprocess.run(["objdump", "-t", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r" O \.(?:data|bss|tbss|tdata)\s+\w+\s+(?:\.hidden )?(\S+)$", symbols, re.M)
    writable = {re.sub(r"\.\d+$", "", name) for name in found} - {"__TMC_END__", "__dso_handle"}
    assert "rt" in writable
    allowed = {"rt", "shared_block", "streams", "looking", "next_write", "next_writev", "bytes", "bound", "cache", "cached", "function", "stacks", "prepared", "b200_dlsym_target",
               "completed", "b200_thread_block"}
    allowed |= {"nvml", "python", "hook", "method"}  # interpose/nvml.c, python_hook.c
    allowed |= {"b200_timing_state", "b200_timing_wants", "count"}  # interpose/timing; communicators made by ncclCommInitAll
    allowed |= {"memory", "b200_memory_is_pooling", "oom"}  # interpose/memory.c, oom.c
    allowed |= {"closed"}  # interpose/live.c: streams that the job has closed
    allowed |= {"exec", "gpus", "all", "watch", "vendor", "state", "tries"}  # interpose/exec: breaker, contexts, arenas, samples; vendor.c
    allowed |= {f"b200_slots_{lib}" for lib in ("cudart", "cuda", "cublas", "cublaslt", "nccl")}
    assert writable <= allowed


# ------------------------------------------------------------------------------------------------- forks and configuration

FORKING = """
import ctypes, os, sys
def use():
    runtime, block = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
    return runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 21))
before = use() if sys.argv[1] == "after" else None
child = os.fork()
result = use()
if child == 0:
    os._exit(10 + result)
print(before, result, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

NODE = [STANDINS / name for name in ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1")]


@pytest.mark.parametrize("when, output, allocations", [
    # a child that uses CUDA by itself has a log of its own; os._exit() ends it before the first second's counts are written
    ("before", "None 0 10\n", [0, 1]),
    ("after", "0 0 13\n", [2]),  # CUDA refuses the child of a process that has used it: cudaErrorInitializationError
])
def test_forked_children(when, output, allocations, tmp_path):
    bare = arms([PYTHON, "-c", FORKING, when], tmp_path, NODE)
    assert (bare.returncode, bare.stdout) == (0, output)
    logs = read_logs(tmp_path / "observed")
    assert sorted(sum(r["allocs"] for r in log if r["t"] == "alloc") for log in logs) == allocations
    assert all(log[0]["t"] == "header" for log in logs) and len({log[0]["pid"] for log in logs}) == len(logs)


def test_a_wrong_variable_is_said_once_and_logged(tmp_path):
    script = FORKING.split("before =")[0] + "print(use(), use())"
    result = run([PYTHON, "-c", script], environment("observed", tmp_path, NODE, B200OPT_MEMORY="maybe", B200OPT_MEMROY="off"))
    assert (result.returncode, result.stdout) == (0, "0 0\n")
    expected = ["B200OPT_MEMORY: 'maybe' is not accepted (accepted: observe|pool|off); using the default 'observe'",
                "unknown variable B200OPT_MEMROY is ignored; the nearest known one is B200OPT_MEMORY"]
    assert sorted(result.stderr.splitlines()) == sorted("b200opt: " + text for text in expected)
    assert sorted(r["text"] for r in read_logs(tmp_path)[0] if r["t"] == "warn") == sorted(expected)


@pytest.mark.parametrize("level, said", [("silent", r""), ("warn", r"b200opt: unknown .*\n"),
                                         ("info", r"b200opt: unknown .*\nb200opt: log .*\.jsonl\n")])
def test_log_levels(level, said, tmp_path):
    script = FORKING.split("before =")[0] + "print(use())"
    env = environment("observed", tmp_path, NODE, B200OPT_LOG_LEVEL=level, B200OPT_NONSENSE="1")
    result = run([PYTHON, "-c", script], env)
    assert result.stdout == "0\n" and re.fullmatch(said, result.stderr)
    assert [r["t"] for r in read_logs(tmp_path)[0]].count("warn") == 1


def test_memory_off_keeps_no_ledger(tmp_path):
    script = FORKING.split("before =")[0] + "print(use())"
    run([PYTHON, "-c", script], environment("observed", tmp_path, NODE, B200OPT_MEMORY="off"))
    records = read_logs(tmp_path)[0]
    assert total(records, "cuMemAlloc_v2") == 1 and not [r for r in records if r["t"] == "alloc"]
