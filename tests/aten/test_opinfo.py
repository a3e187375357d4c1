# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database: forward and gradient of each operator's first samples, against the CPU.

What cannot be compared is listed below, each with its reason; anything else that differs fails. The operators run in
child processes, since an unhandled kernel ends the process: the parent names the operator and goes on with the rest.
"""
import os
import subprocess
import sys
import tempfile

import pytest
import torch

SAMPLES = 3

# Random or uninitialised results: the CPU's are other numbers by design. Tested in test_random.py and test_attention.py.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric", "log_normal", "multinomial",
    "new_empty", "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu", "nn.functional.scaled_dot_product_attention", "normal", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "uniform",
}

# What differs, with the reason. Names are those of the database, with the variant after a dot.
KNOWN = {
    "as_strided.partial_views": "the comparison copies a view without the base that the sample is about",
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "jiterator_2inputs_2outputs": "compiles CUDA source at run time",
    "jiterator_4inputs_with_extra_args": "compiles CUDA source at run time",
    "jiterator_binary": "compiles CUDA source at run time",
    "jiterator_binary_return_by_ref": "compiles CUDA source at run time",
    "jiterator_unary": "compiles CUDA source at run time",
    "linalg.eig": "its gradient is defined only for losses that do not depend on the eigenvectors' phase",
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "tensor_split": "PyTorch wants its indices on the CPU",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "is for the CPU",
}


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def infos():
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes and op.name not in RANDOM and full_name(op) not in KNOWN]


def close(expected, found):
    assert type(expected) is type(found) or not isinstance(expected, torch.Tensor), (type(expected), type(found))
    if isinstance(expected, torch.Tensor):
        assert found.is_cuda, "a result is not on the device"
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
            kwargs.update({"device": device} if "device" in kwargs else {})
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
    assert compared > 1000, "the operator database gave no samples"
    print(f"{compared} samples compared")
    assert not failures, "\n".join([f"{len(failures)} operators differ:"] + failures)


if __name__ == "__main__":
    child(*sys.argv[1:])
