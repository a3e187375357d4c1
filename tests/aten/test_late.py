# SPDX-License-Identifier: Apache-2.0
"""Operators run after their calls, with what they were given in the calls: what they keep, what memory they touch, how long they
take. Some of it shows only in orders that are not eager."""
import ctypes
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

ORDER = os.environ.get("B200OPT_VNODE_ORDER", "eager")
late_only = pytest.mark.skipif(ORDER == "eager", reason="B200OPT_VNODE_ORDER is eager")
deferred_only = pytest.mark.skipif(ORDER != "deferred", reason="the adversarial order may run work early")

node = ctypes.CDLL("libb200vnode.so")
node.vnode_model_kernel_ns.argtypes, node.vnode_model_kernel_ns.restype = [ctypes.c_uint64], ctypes.c_int64
node.vnode_race_count.restype = ctypes.c_uint64

N = 64


def peek(t):
    """The first float of a tensor's memory as it is now, without waiting."""
    return ctypes.c_float.from_address(t.data_ptr()).value


def operators(x):
    """(name in messages, call) by the ways in which operators reach the stream. x: [N, N]."""
    row = torch.ones(N, device="cuda")
    ids = torch.arange(N, device="cuda")
    q = x.view(1, 4, 16, N)
    masks = torch.ones(N, N, device="cuda", dtype=torch.uint8)
    return {
        "boxed": ("aten::mul", lambda: x * 2),
        "in place": ("aten::add_", lambda: x.add_(1)),
        "strided": ("aten::add_", lambda: x[:, :5].add_(1)),
        "list": ("aten::_foreach_add_", lambda: torch._foreach_add_([x], 1)),
        "results of a list": ("aten::_foreach_mul", lambda: torch._foreach_mul([x, row], 2.0)),
        "indexed": ("aten::index", lambda: x[ids]),
        "softmax": ("aten::_softmax", lambda: x.softmax(1)),
        "norm": ("aten::native_layer_norm", lambda: F.layer_norm(x, (N,), row, row)),
        "attention": ("attention", lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)),
        "dropout": ("aten::native_dropout", lambda: F.dropout(x, 0.5)),
        "scale": ("aten::_masked_scale", lambda: torch.ops.aten._masked_scale(x, masks, 2.0)),
        "conversion": ("copy_", lambda: torch.empty(N, N, device="cuda", dtype=torch.bfloat16).copy_(x)),
        "random": ("uniform_", lambda: x.uniform_()),
        "random by tensor": ("bernoulli_", lambda: torch.empty_like(x).bernoulli_(x)),
        "random boxed": ("aten::poisson", lambda: torch.poisson(x)),
    }


KINDS = ["boxed", "in place", "strided", "list", "results of a list", "indexed", "softmax", "norm", "attention", "dropout", "scale", "conversion",
         "random", "random by tensor", "random boxed"]


@deferred_only
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_runs_in_the_call(kind):
    x, probe = torch.full((N, N), 0.5, device="cuda"), torch.zeros(1, device="cuda")
    call = operators(x)[kind][1]
    torch.cuda.synchronize()
    call()
    probe.fill_(1)  # after it on the stream
    assert peek(probe) == 0
    torch.cuda.synchronize()
    assert peek(probe) == 1


@late_only
@pytest.mark.races
@pytest.mark.parametrize("kind", KINDS)
def test_accesses(kind, capfd):
    """An operator beside a write of its operand that nothing orders is a race, and the report names it; ordered, it is none."""
    x = torch.full((N, N), 0.5, device="cuda")
    name, call = operators(x)[kind]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()

    def write_beside():
        with torch.cuda.stream(side):
            x.fill_(0.25)

    for ordered in (True, False):
        before = node.vnode_race_count()
        write_beside()
        if ordered:
            torch.cuda.current_stream().wait_stream(side)
        call()
        torch.cuda.synchronize()
        said = [line for line in capfd.readouterr().err.splitlines() if "race" in line]
        assert (node.vnode_race_count() > before) != ordered, said
    if said:  # once per pair of names: another case may have had it
        assert any(name in line for line in said), said


@late_only
@pytest.mark.races
def test_results_are_accesses():
    x = torch.ones(N, N, device="cuda")
    torch.cuda.synchronize()
    y = x * 2
    before = node.vnode_race_count()
    with torch.cuda.stream(torch.cuda.Stream()):
        z = y + 1
    torch.cuda.synchronize()
    assert node.vnode_race_count() > before
    del z


def test_neighbours_do_not_race():
    """Columns, rows and lists beside each other are told apart."""
    x = torch.zeros(N, N, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for mine, other in ((x[:, :32], x[:, 32:]), (x[::2], x[1::2]), (x[:, 3], x[:, 4]), (x[:32], x[32:])):
        mine.add_(1)
        torch._foreach_add_([mine], 1)
        with torch.cuda.stream(side):
            other.add_(1)
            torch._foreach_add_([other], 1)
        torch.cuda.synchronize()


def test_host_operands_are_those_of_the_call():
    x = torch.arange(6.0, device="cuda")
    index, scale = torch.tensor([0, 2]), torch.tensor(3.0)
    picked, scaled = x[index], x * scale
    x.add_(scale)
    index.fill_(5)
    scale.fill_(0)
    assert picked.tolist() == [0, 2] and scaled.tolist() == [0, 3, 6, 9, 12, 15]
    assert x.tolist() == [3, 4, 5, 6, 7, 8]


def test_errors_in_arguments_are_raised_by_the_call():
    x, narrow = torch.ones(3, device="cuda"), torch.ones(4, device="cuda")
    for _ in range(2):  # what is learnt of a call that fails must not hide the next failure
        for call in (lambda: x + narrow, lambda: x.add_(narrow), lambda: torch.add(x, narrow, out=x), lambda: torch._foreach_add_([x], [narrow]),
                     lambda: F.layer_norm(x, (4,))):
            with pytest.raises(RuntimeError):
                call()
        with pytest.raises(IndexError):
            x.sum(5)
    assert x.tolist() == [1, 1, 1]


def test_shapes_that_depend_on_values_are_waited_for():
    mask = torch.tensor([True, False, True, True], device="cuda")
    x = torch.arange(4.0, device="cuda")
    assert x[mask].shape == (3,) and torch.nonzero(mask).shape == (3, 1)
    assert x.masked_select(mask).tolist() == [0, 2, 3]
    x[mask] = torch.tensor([7.0, 8.0, 9.0], device="cuda")
    assert x.tolist() == [7, 1, 8, 9]
    assert torch.unique(x).tolist() == [1, 7, 8, 9]
    assert torch.repeat_interleave(torch.tensor([1, 3], device="cuda")).tolist() == [0, 1, 1, 1]
    assert torch.equal(x, x) and not torch.equal(x, x + 1)


def test_out_and_views():
    a = torch.arange(12.0, device="cuda").view(3, 4)
    out = torch.empty(0, device="cuda")
    assert torch.add(a, 1, out=out) is out and out.shape == (3, 4)
    again = torch.empty(2, 2, device="cuda").resize_(0)
    torch.add(a, 1, out=again)
    columns = torch.empty(4, 3, device="cuda").t()
    torch.mul(a, 2, out=columns)
    assert columns.stride() == (1, 3)
    torch.testing.assert_close(columns.cpu(), a.cpu() * 2)
    torch.testing.assert_close(again.cpu(), a.cpu() + 1)
    torch.testing.assert_close(out.cpu(), a.cpu() + 1)


def test_operators_own_no_device_memory():
    """What a program drops is free at once, although the work may be still to be done."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    x = torch.ones(1 << 20, device="cuda")
    y = torch.cat([x, x]) * 2
    del x
    assert torch.cuda.memory_allocated() == held + y.nbytes
    total = y.sum()
    del y
    assert torch.cuda.memory_allocated() - held <= 1024
    assert total.item() == 2 << 21


def test_batch_norm_writes_its_statistics():
    """Training does, evaluation does not: two evaluations on two streams are no race."""
    layer = torch.nn.BatchNorm1d(8).cuda()
    x = torch.randn(16, 8, device="cuda")
    layer(x)
    layer.eval()
    torch.cuda.synchronize()
    first = layer(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        second = layer(x)
    torch.cuda.synchronize()
    assert torch.equal(first, second)


@late_only
@pytest.mark.races
def test_training_races_with_evaluation():
    layer = torch.nn.BatchNorm1d(8).cuda()
    x = torch.randn(16, 8, device="cuda")
    torch.cuda.synchronize()
    before = node.vnode_race_count()
    layer(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        F.batch_norm(x, layer.running_mean, layer.running_var)
    torch.cuda.synchronize()
    assert node.vnode_race_count() > before


@pytest.mark.parametrize("elements", [1 << 22, 1 << 24])
def test_modelled_time_is_that_of_the_bytes_moved(elements):
    """A kernel that the host has submitted before the device is free takes what the model says."""
    x, y = torch.ones(elements, device="cuda"), torch.ones(elements, device="cuda")
    busy = torch.ones(1 << 26, device="cuda")
    for call, moved in ((lambda: x.add_(y), 8), (lambda: x + y, 12), (lambda: torch._foreach_add_([x], [y]), 8), (lambda: x.bfloat16(), 6),
                        (lambda: x.uniform_(), 4)):
        call()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for _ in range(8):
            busy.zero_()
        events[0].record()
        call()
        events[1].record()
        torch.cuda.synchronize()
        expected = node.vnode_model_kernel_ns(moved * elements)
        assert abs(events[0].elapsed_time(events[1]) * 1e6 - expected) <= 1


# --------------------------------------------------------------------------------------------------------- the process ends badly

def run(code):
    return subprocess.run([sys.executable, "-c", "import torch\n" + code], capture_output=True, text=True, timeout=300)


@late_only
def test_a_kernel_that_refuses_values_is_an_assertion():
    """As on a GPU: the call gives no error, the next synchronisation does, and the context is gone."""
    ended = run("""
x = torch.ones(3, device="cuda")
y = x[torch.tensor([5], device="cuda")]
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
try:
    x + 1
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
import os; os._exit(0)
""")
    assert ended.stdout.splitlines() == ["CUDA error: device-side assert triggered"] * 2, ended
    assert "b200vnode: aten::index: " in ended.stderr and "out of bounds" in ended.stderr, ended.stderr


@late_only
def test_assert_async():
    ended = run("""
torch._assert_async(torch.tensor(True, device="cuda"))
torch.cuda.synchronize()
torch._assert_async(torch.tensor(False, device="cuda"))
print("went on")
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
import os; os._exit(0)
""")
    assert ended.stdout.splitlines() == ["went on", "CUDA error: device-side assert triggered"], ended
