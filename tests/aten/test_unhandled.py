# SPDX-License-Identifier: Apache-2.0
"""A CUDA kernel that nothing computes ends the process, with its name."""
import subprocess
import sys

import pytest

CASES = {
    "_efficient_attention_forward": (
        "q = torch.randn(1, 8, 2, 16, device='cuda'); torch.ops.aten._efficient_attention_forward(q, q, q, None, None, None, 8, 8, 0.0, 0)", "fmha"),
    "jiterator": ("torch.special.bessel_j0(torch.rand(4, device='cuda')); f = torch.cuda.jiterator._create_jit_fn('template <typename T> T f(T x) "
                  "{ return x; }'); f(torch.rand(4, device='cuda')); torch.cuda.synchronize()", "f"),
    "sparse": ("s = torch.eye(3, device='cuda').to_sparse(); (s.coalesce() * 2 + s).coalesce()", ""),
}


@pytest.mark.parametrize("name", ["_efficient_attention_forward"])
def test_fatal_by_name(name):
    statement, kernel = CASES[name]
    run = subprocess.run([sys.executable, "-c", f"import torch\n{statement}\nprint('went on')"], capture_output=True, text=True, timeout=300)
    assert run.returncode != 0, run
    assert "went on" not in run.stdout
    assert kernel in run.stderr, run.stderr[-2000:]
