# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator database, run in child processes, since an unhandled kernel ends the process: `sweep` names that operator
and goes on with the rest. What a child does with each operator's first samples is its mode:

    cpu    compares results and gradients with the CPU's, and counts them
    bits   digests results and gradients, for comparison with another order
    graph  captures results and gradients after a warm-up, replays them with changed inputs, compares with a plain run: to the last bit
"""
import hashlib
import os
import subprocess
import sys
import tempfile
from itertools import islice

import torch

from common import gradients, tensors, to

SAMPLES = 3

# Random results: the CPU's are other numbers by design. Against their definition in test_random.py and test_attention.py.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "normal", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
}

# Uninitialised results.
EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# Holes: what cannot run here or not be compared, with the reason. Names are those of the database, with the variant after a dot.
HOLES = {
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "jiterator_2inputs_2outputs": "compiles CUDA source at run time",
    "jiterator_4inputs_with_extra_args": "compiles CUDA source at run time",
    "jiterator_binary": "compiles CUDA source at run time",
    "jiterator_binary_return_by_ref": "compiles CUDA source at run time",
    "jiterator_unary": "compiles CUDA source at run time",
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "tensor_split": "PyTorch wants its indices on the CPU",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "is for the CPU",
    "as_strided.partial_views": "the comparison copies a view without the base that the sample is about",
    "linalg.eig": "its gradient is defined only for losses that do not depend on the eigenvectors' phase",
}


# What no graph takes, with the reason. All of it is refused on a GPU, too: by CUDA, or by PyTorch before it asks CUDA.
WAITS = ("looks at a value on the host", "operation not permitted when stream is capturing")
PAGEABLE = ("copies from pageable memory", "unless the CPU tensor is pinned")
CHECKS = ("checks its lengths on the host", "cannot be captured")
REFUSED = {
    **dict.fromkeys([
        "__getitem__", "masked.amax", "masked.amin", "masked.argmax", "masked.argmin", "masked.cumprod", "masked.cumsum", "masked.log_softmax",
        "masked.logaddexp", "masked.logsumexp", "masked.mean", "masked.median", "masked.norm", "masked.prod", "masked.softmax", "masked.softmin",
        "masked.std", "masked.sum", "masked.var", "nn.functional.ctc_loss",
    ], PAGEABLE),
    **dict.fromkeys([
        "allclose", "argwhere", "corrcoef", "cov", "cumprod", "equal", "index_fill", "index_put", "item", "linalg.cholesky", "linalg.eigvals",
        "linalg.inv", "linalg.ldl_factor", "linalg.lstsq", "linalg.lstsq.grad_oriented", "linalg.lu_factor", "linalg.solve", "linalg.tensorinv",
        "linalg.tensorsolve", "linalg.vander", "linspace.tensor_overload", "logspace.tensor_overload", "masked_fill", "masked_scatter",
        "masked_select", "narrow", "nn.functional.gaussian_nll_loss", "nonzero", "prod", "to_sparse", "unique", "unique_consecutive",
    ], WAITS),
    "_segment_reduce.lengths": CHECKS,
}


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def infos(mode):
    from torch.testing._internal.common_methods_invocations import op_db

    left_out = set(HOLES)
    if mode == "cpu":
        left_out |= RANDOM | EMPTY
    return [op for op in op_db if torch.float32 in op.dtypes and op.name not in left_out and full_name(op) not in left_out]


def samples(op):
    """(function of tensors, its inputs) of each sample, on a device. Inputs are made once, on the CPU."""
    for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), SAMPLES):
        yield lambda device, sample=sample: prepared(op, sample, device)


def prepared(op, sample, device):
    args, kwargs = to((sample.input, *sample.args), device), to(sample.kwargs, device)
    kwargs.update({"device": device} if "device" in kwargs else {})
    return (lambda *a: op(*a, **kwargs)), args, kwargs


def run(prepare, device):
    function, args, _ = prepare(device)
    torch.manual_seed(0)
    with torch.device(device):
        return gradients(function, args)


# ------------------------------------------------------------------------------------------------------------------------ modes

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


def like_cpu(op):
    compared = 0
    for prepare in samples(op):
        close(run(prepare, "cpu"), run(prepare, "cuda"))
        compared += 1
    return str(compared)


def bits(t):
    t = t.detach().cpu()
    if t.layout != torch.strided:
        t = t.to_dense()
    return torch.empty(t.shape, dtype=t.dtype).copy_(t).reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(op):
    known = hashlib.sha256()
    for prepare in samples(op):
        for t in tensors(run(prepare, "cuda")):
            strides = t.stride() if t.layout == torch.strided else None
            known.update(repr((t.dtype, tuple(t.shape), strides, t.device)).encode())
            known.update(b"" if op.name in EMPTY else bits(t))
    return known.hexdigest()


class Refused(Exception):
    """The capture ended in an exception: what a program on a GPU may meet too."""


def capture(graph, step):
    reason = None
    try:
        with torch.cuda.graph(graph):
            try:
                return step()
            except Exception as error:
                reason = error
                raise
    except Exception as error:
        reason = reason or error  # leaving the capture raises once more
    raise Refused(f"{type(reason).__name__}: {reason}")


def captured(op):
    """How many samples a graph replays with the bits of a plain run."""
    from torch.testing._internal import common_methods_invocations

    # The database seeds the generators in each random operator; in a graph that is refused, and hides how numbers advance.
    common_methods_invocations.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    replayed = 0
    for prepare in samples(op):
        function, args, kwargs = prepare("cuda")
        inputs = [t for t in tensors((args, kwargs)) if t.is_cuda]

        # On this thread: autograd's own lets go of a backward pass after the caller has gone on. Tensors that die there while the next
        # operator is captured have PyTorch's allocator record events in that capture, or end the process when it is spoilt.
        def step():
            with torch.device("cuda"), torch.autograd.set_multithreading_enabled(False):
                return gradients(function, args)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        originals = [t.detach().clone() for t in inputs]
        graph = torch.cuda.CUDAGraph()
        results = capture(graph, step)
        for t, original in zip(inputs, originals):
            with torch.no_grad():  # smaller, so that what is valid (a probability, a definite matrix, an index) stays so
                t.copy_(original * 0.75 if t.is_floating_point() or t.is_complex() else original)
        torch.manual_seed(7)
        graph.replay()
        found = [(None if op.name in EMPTY else bits(t)) for t in tensors(results)]
        for t, original in zip(inputs, originals):
            with torch.no_grad():
                t.copy_(original * 0.75 if t.is_floating_point() or t.is_complex() else original)
        torch.manual_seed(7)
        expected = [(None if op.name in EMPTY else bits(t)) for t in tensors(step())]
        assert found == expected, "the replay differs from a plain run"
        replayed += 1
        graph.reset()
    return str(replayed)


MODES = {"cpu": like_cpu, "bits": digest, "graph": captured}


# ---------------------------------------------------------------------------------------------------------------------- processes

def child(mode, names_file, progress_file):
    """One line a finished operator: name, and what the mode gave or what was wrong."""
    with open(names_file) as file:
        wanted = set(file.read().splitlines())
    with open(progress_file, "a", buffering=1) as progress:
        for op in infos(mode):
            label = full_name(op)
            if label not in wanted:
                continue
            progress.write(f"start\t{label}\n")
            try:
                progress.write(f"done\t{label}\t{MODES[mode](op)}\n")
            except Exception as error:
                progress.write(f"fail\t{label}\t{type(error).__name__}: {' '.join(str(error).split())[:300]}\n")


def sweep(mode, order, seed=1):
    """Runs the database in `order`: ({operator: what its mode gave}, {operator: what was wrong})."""
    left, given, wrong = [full_name(op) for op in infos(mode)], {}, {}
    with tempfile.TemporaryDirectory() as folder:
        names, progress = os.path.join(folder, "names"), os.path.join(folder, "progress")
        while left:
            with open(names, "w") as file:
                file.write("\n".join(left))
            open(progress, "w").close()
            ended = subprocess.run([sys.executable, __file__, mode, names, progress], capture_output=True, text=True, timeout=3600,
                                   env={**os.environ, "B200OPT_VNODE_ORDER": order, "B200OPT_VNODE_SEED": str(seed)})
            started, before = None, len(left)
            for line in open(progress):
                kind, label, *rest = line.rstrip("\n").split("\t")
                if kind == "start":
                    started = label
                    continue
                left.remove(label)
                started = None
                (given if kind == "done" else wrong)[label] = rest[0]
            if started:
                left.remove(started)
                wrong[started] = f"the process ended ({ended.returncode}): {ended.stderr.strip()[-300:]}"
            assert len(left) < before, ended.stderr[-2000:]
            races = [line for line in ended.stderr.splitlines() if line.startswith("b200vnode: race")]
            assert not races, "\n".join(races)
    return given, wrong


if __name__ == "__main__":
    child(*sys.argv[1:])
