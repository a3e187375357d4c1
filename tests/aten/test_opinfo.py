# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database: forward and gradient of each operator's first samples, against the CPU.

What the virtual node cannot do is listed below, each with its reason; anything else that differs fails. The operators run in
child processes, since an unhandled kernel ends the process: the parent names the operator and goes on with the rest.
B200OPT_OPINFO_SHARE=k takes every k-th operator (default 4, at most a minute on two cores); 1 takes all.
"""
import os
import subprocess
import sys
import tempfile

import pytest
import torch

SAMPLES = 3

# Random or uninitialised results: the CPU's are other numbers by design. Tested in test_random.py.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric", "log_normal", "multinomial",
    "native_dropout_backward", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu", "nn.functional.scaled_dot_product_attention", "normal", "pca_lowrank",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform", "poisson", "normal_in_place", "binomial",
    "torch.ops.aten._safe_softmax.default",
}

# Holes: the process ends with the kernel's or function's name, or PyTorch raises.
HOLES = {
    "as_strided": "its sample partial_views moves the base of a view that CUDA and CPU allocate differently",
    "jiterator": "compiles CUDA source at run time",
    "sparse": "kernels of sparse tensors have their own dispatch key",
    "_scaled_mm_v2": "CUTLASS kernels inside libtorch_cuda",
    "histogramdd": "PyTorch has no CUDA kernel", "histogram": "PyTorch has no CUDA kernel",
    "linalg.lstsq": "the CPU's default driver is one that CUDA refuses",
    "tensor_split": "a device tensor of indices is refused by both; the sample is for the CPU",
    "linalg.eig": "complex GEMM: a cuBLAS function that the node does not have",
    "linalg.eigvals": "complex GEMM: a cuBLAS function that the node does not have",
}


def skip_reason(name):
    if name in RANDOM:
        return "random"
    return HOLES.get(name) or next((why for hole, why in HOLES.items() if name.startswith((hole + ".", hole + "_"))), None)


def infos():
    from torch.testing._internal.common_methods_invocations import op_db

    share = int(os.environ.get("B200OPT_OPINFO_SHARE", "4"))
    chosen = [op for op in op_db if torch.float32 in op.dtypes and not skip_reason(op.name)]
    return chosen[::share]


def close(expected, found):
    assert type(expected) is type(found) or not isinstance(expected, torch.Tensor), (type(expected), type(found))
    if isinstance(expected, torch.Tensor):
        if expected.layout == torch.strided and found.layout == torch.strided:
            assert found.dtype == expected.dtype and found.shape == expected.shape, (found.dtype, found.shape, expected.dtype, expected.shape)
            torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-4, atol=1e-4, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        for e, f in zip(expected, found):
            close(e, f)


def one(op):
    """Runs an operator's first samples on both. Returns how many were compared."""
    from itertools import islice

    from common import gradients, to

    wants_grad = op.supports_autograd
    compared = 0
    for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=wants_grad), SAMPLES):
        def run(device):
            args, kwargs = to((sample.input, *sample.args), device), to(sample.kwargs, device)
            kwargs = {k: torch.device(device) if isinstance(v, torch.device) or k == "device" else v for k, v in kwargs.items()}
            torch.manual_seed(0)
            with torch.device(device):
                return gradients(lambda *a: op(*a, **kwargs), args)
        close(run("cpu"), run("cuda"))
        compared += 1
    return compared


def child(names_file, progress_file):
    """One line a finished operator: name, ok or what was wrong."""
    with open(names_file) as file:
        wanted = set(file.read().splitlines())
    with open(progress_file, "a", buffering=1) as progress:
        for op in infos():
            label = full_name(op)
            if label not in wanted:
                continue
            progress.write(f"start\t{label}\n")
            try:
                progress.write(f"done\t{label}\t{one(op)}\n")
            except Exception as error:
                progress.write(f"fail\t{label}\t{type(error).__name__}: {' '.join(str(error).split())[:300]}\n")


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def test_operator_database():
    left = [full_name(op) for op in infos()]
    failures, compared = [], 0
    with tempfile.TemporaryDirectory() as folder:
        names, progress = os.path.join(folder, "names"), os.path.join(folder, "progress")
        while left:
            with open(names, "w") as file:
                file.write("\n".join(left))
            open(progress, "w").close()
            run = subprocess.run([sys.executable, __file__, names, progress], capture_output=True, text=True, timeout=1200)
            started = None
            for line in open(progress):
                kind, label, *rest = line.rstrip("\n").split("\t")
                if kind == "start":
                    started = label
                    continue
                left.remove(label)
                started = None
                if kind == "fail":
                    failures.append(f"{label}: {rest[0]}")
                else:
                    compared += int(rest[0])
            if started:
                left.remove(started)
                failures.append(f"{started}: the process ended ({run.returncode}): {run.stderr.strip()[-300:]}")
            elif run.returncode:
                pytest.fail(run.stderr[-2000:])
    assert compared > 100, "the operator database gave no samples"
    print(f"{compared} samples compared")
    assert not failures, "\n".join([f"{len(failures)} operators differ:"] + failures)


if __name__ == "__main__":
    child(*sys.argv[1:])
