# SPDX-License-Identifier: Apache-2.0
"""A CUDA kernel that nothing computes ends the process, with its name: never wrong numbers in silence."""
import os
import subprocess
import sys

import pytest

# name: (preparation, call, what the message names)
CASES = {
    "attention called by its kernel": (
        "q = torch.randn(1, 8, 2, 16, device='cuda')",
        "torch.ops.aten._efficient_attention_forward(q, q, q, None, None, None, 8, 8, 0.0, 0)",
        "fmha_cutlass"),
    "rowwise FP8 (CUTLASS)": (
        "a, b = (torch.ones(n, 64, device='cuda').to(torch.float8_e4m3fn) for n in (32, 48)); rows = torch.ones(32, 1, device='cuda'); "
        "columns = torch.ones(1, 48, device='cuda')",
        "torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16)",
        ""),
    "kernel compiled at run time": (
        "f = torch.cuda.jiterator._create_jit_fn('template <typename T> T twice(T x) { return x + x; }'); x = torch.rand(4, device='cuda')",
        "f(x)",
        "twice"),
    "recurrent cell": ("m, x = torch.nn.LSTM(4, 5).cuda(), torch.randn(2, 3, 4, device='cuda')", "m(x)", "lstm_cell_forward"),
}


def run(statement, **env):
    """Ends without Python's own end: PyTorch's threads may outlive the interpreter, which now and then aborts a process that ends right
    after its first backward (pytorch/pytorch#38230)."""
    code = f"import os, torch\n{statement}\ntorch.cuda.synchronize()\nprint('went on', flush=True)\nos._exit(0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ, **env})


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_fatal_by_name(name, captured):
    """Into a graph, too: at the call, not only when the graph is launched."""
    preparation, call, kernel = CASES[name]
    ended = run(f"{preparation}\n" + (f"with torch.cuda.graph(torch.cuda.CUDAGraph()):\n    {call}" if captured else call))
    assert ended.returncode != 0 and "went on" not in ended.stdout, ended
    said = [line for line in ended.stderr.splitlines() if line.startswith("b200vnode: ")]
    assert said and kernel in said[-1], ended.stderr[-2000:]


def test_a_program_without_holes_says_nothing():
    ended = run("x = torch.randn(3, 3, device='cuda', requires_grad=True); (x @ x).softmax(1).sum().backward()")
    assert ended.returncode == 0 and ended.stdout == "went on\n" and ended.stderr == "", ended
