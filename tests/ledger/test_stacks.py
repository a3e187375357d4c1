# SPDX-License-Identifier: Apache-2.0
"""B200OPT_MEMORY_STACKS=on: the file and line of an allocation on Python's main thread, the native stack of every other."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"])
MIB = 1 << 20

JOB = """
import threading
import torch

def deep():
    return torch.empty(64 << 20, device="cuda", dtype=torch.uint8)  # HERE 64

def in_thread():
    kept.append(torch.empty(30 << 20, device="cuda", dtype=torch.uint8))

torch.cuda.init()
kept = [deep()]  # FROM 64
kept.append(torch.zeros(100 << 20, dtype=torch.uint8,  # HERE 100
                        device="cuda"))
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
weight = torch.ones(40 << 20, dtype=torch.uint8, device="cuda", requires_grad=False)  # HERE 40
print("done", flush=True)
"""

# Ends in every way while a request may wait; and a child that goes on without CUDA.
ENDS = {
    "atexit": "import atexit; atexit.register(lambda: torch.empty(50 << 20, device='cuda', dtype=torch.uint8))",
    "finalizer": """
class Late:
    def __del__(self, empty=torch.empty, byte=torch.uint8):
        try:
            self.kept = empty(50 << 20, device="cuda", dtype=byte)
        except BaseException:
            pass
import builtins
builtins.late = Late()
""",
    "exception": "raise SystemExit(3)",
    "exit": "import os; os._exit(0)",
    "fork": """
import os, sys
kept = torch.empty(50 << 20, device="cuda", dtype=torch.uint8); child = os.fork()
if child == 0:
    sum(len(str(i)) for i in range(1000))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "many": """
kept = []
for i in range(200):
    kept.append(torch.empty(4 << 20, device="cuda", dtype=torch.uint8))
    if i % 7 == 0:
        torch.cuda.empty_cache()
""",
    "threads": """
import threading
def work():
    for _ in range(50):
        torch.empty(30 << 20, device="cuda", dtype=torch.uint8); torch.cuda.empty_cache()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [torch.empty(26 << 20, device="cuda", dtype=torch.uint8) for _ in range(50)]; [t.join() for t in threads]
""",
}


def run(tmp_path, program, status=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_")) and k != "LD_PRELOAD"}
    env |= {k: v for k, v in os.environ.items() if k == "B200OPT_VNODE_ATEN_DIR"}
    (tmp_path / "job.py").write_text(program)
    done = subprocess.run([BUILD / "b200opt", "dryrun", "--gpus", "1", "--log", "logs", "B200OPT_MEMORY_STACKS=on", "--", sys.executable, "-B", "job.py"],
                          capture_output=True, text=True, env=env, cwd=tmp_path, timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    lines = [json.loads(line) for path in tmp_path.glob("logs/**/*.jsonl") for line in path.read_text().splitlines()]
    return [r for r in lines if r["t"] == "stack" and r["owner"] == "pytorch"]


def test_file_and_line(tmp_path):
    stacks = run(tmp_path, JOB)
    of = {r["bytes"] // MIB: r for r in stacks}
    lines = {}
    for number, text in enumerate(JOB.splitlines(), 1):
        for what, size in re.findall(r"# (HERE|FROM) (\d+)", text):
            lines[what, int(size)] = number
    for size in (64, 100, 40):
        assert of[size]["python"].split()[0].startswith(f"job.py:{lines['HERE', size]}:") or \
            of[size]["python"].split()[0].startswith(f"{tmp_path}/job.py:{lines['HERE', size]}:"), of[size]
    assert of[64]["python"].split()[0].endswith(":deep") and f"job.py:{lines['FROM', 64]}:<module>" in of[64]["python"].split()[1]
    assert "python" not in of[30], "the main thread does not know what another one did"
    assert all("libcudart" in r["frames"] or "libcuda" in r["frames"] for r in stacks)


def test_no_line_while_an_exception_is_handled(tmp_path):
    """Python may stand in the handler of what the call itself has raised."""
    stacks = run(tmp_path, """
import torch
kept = [torch.empty(64 << 20, device="cuda", dtype=torch.uint8)]
try:
    raise ValueError
except ValueError:
    kept.append(torch.empty(30 << 20, device="cuda", dtype=torch.uint8))
for _ in range(1000):
    pass
""")
    assert {r["bytes"] // MIB: "python" in r for r in stacks} == {64: True, 30: False}, stacks


@pytest.mark.parametrize("end", ENDS)
def test_whatever_the_job_does_then(tmp_path, end):
    stacks = run(tmp_path, "import torch\ntorch.cuda.init()\nfirst = torch.empty(64 << 20, device='cuda', dtype=torch.uint8)\n" + ENDS[end],
                 3 if end == "exception" else 0)
    if end == "exit":
        return # the log of a process that ends this way may lack its last lines
    assert sum(r["bytes"] == 64 * MIB for r in stacks) == 1
    assert all(r["frames"] for r in stacks)
    if end == "threads":
        assert sum("python" in r for r in stacks) >= 1


def test_without_python(tmp_path):
    """The program of test_modules: no Python in the process."""
    here = BUILD / "tests" / "ledger"
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")}
    env |= {"LD_PRELOAD": str(BUILD / "libb200opt.so"), "B200OPT_LOG_DIR": str(tmp_path), "B200OPT_MEMORY_STACKS": "on"}
    env |= {"B200OPT_VNODE_SESSION": f"stacks-{os.getpid()}", "B200OPT_VNODE_GPUS": "1"}
    done = subprocess.run([here / "modules", "100", "1", here / "libnccl_static.so"], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    stacks = [json.loads(line) for path in tmp_path.glob("**/*.jsonl") for line in path.read_text().splitlines() if '"stack"' in line]
    assert stacks and all("libnccl_static.so+0x" in r["frames"] and "python" not in r for r in stacks)
