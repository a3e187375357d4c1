# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, in every combination, and the life of pinned memory."""
import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

PLACES = ["cpu", "pinned", "cuda:0", "cuda:1"]
LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[:, ::2],
    "offset": lambda t: t[1:, 1:],
}


def place(t, where):
    return t.pin_memory() if where == "pinned" else t.to(where)


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("source, target", list(itertools.product(PLACES, PLACES)))
def test_matrix(source, target, non_blocking):
    for (a, b), (s, d) in itertools.product(itertools.product(LAYOUTS, LAYOUTS),
                                            [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.int64, torch.float32),
                                             (torch.bool, torch.uint8), (torch.complex64, torch.complex64)]):
        values = (torch.randn(6, 6) * 4).to(s)
        src = LAYOUTS[a](place(values, source))
        expected = LAYOUTS[a](values).to(d)
        base = place(torch.zeros(16, 16, dtype=d), target)
        dst = LAYOUTS[b](base)[: src.size(0), : src.size(1)]
        src = src[: dst.size(0), : dst.size(1)]
        dst.copy_(src, non_blocking=non_blocking)
        torch.cuda.synchronize()
        assert torch.equal(dst.cpu(), expected[: dst.size(0), : dst.size(1)]), (a, b, s, d)
        rest = base.cpu().clone()
        LAYOUTS[b](rest)[: src.size(0), : src.size(1)] = 0
        assert not rest.any(), "bytes beside the target were written"


@pytest.mark.parametrize("source, target", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda"), ("cuda:0", "cuda:1")])
def test_conjugate_and_negative(source, target):
    values = torch.randn(4, 4, dtype=torch.complex64)
    src = values.to(source)
    for view in (lambda t: t.conj(), lambda t: t.conj().imag, lambda t: torch._neg_view(t), lambda t: t.t().conj()):
        expected = view(values).clone()
        assert torch.equal(view(src).to(target).cpu(), expected)
        # PyTorch's own copy_ between devices loses the bit of a view that is not contiguous (pytorch/pytorch#146286).
        if source == target or view(src).is_contiguous():
            got = torch.empty(expected.shape, dtype=expected.dtype, device=target)
            got.copy_(view(src))
            assert torch.equal(got.cpu(), expected)


def test_broadcast_and_scalar_fill():
    x = torch.zeros(3, 4, device="cuda")
    x.copy_(torch.arange(4.0))
    assert torch.equal(x.cpu(), torch.arange(4.0).expand(3, 4))
    x[1] = 5
    x[:, 2] = torch.tensor(7)
    assert x.sum().item() == 0 + 1 + 7 + 3 + 5 + 5 + 7 + 5 + 0 + 1 + 7 + 3


def test_overlap_is_kept():
    x = torch.arange(8.0, device="cuda")
    x[1:].copy_(x[:-1].clone())
    assert x.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


def test_pinned_block_is_not_reused_before_its_copy_is_done():
    """PyTorch's host allocator is told of every asynchronous copy: it asks the copy's event before giving the block again."""
    device = torch.zeros(1 << 16, device="cuda")
    for i in range(50):
        batch = torch.full((1 << 16,), float(i)).pin_memory()
        device.copy_(batch, non_blocking=True)
        del batch
        other = torch.full((1 << 16,), -1.0).pin_memory()
        torch.cuda.current_stream().synchronize()
        assert (device == i).all()
        del other
    stats = torch.cuda.host_memory_stats()
    assert stats["num_host_alloc"] < 20, "blocks are never given back"


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins(workers):
    data = TensorDataset(torch.arange(64.0).view(32, 2))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers, multiprocessing_context="fork" if workers else None)
    for _ in range(2):
        seen = []
        for (batch,) in loader:
            assert batch.is_pinned()
            on_device = batch.to("cuda", non_blocking=True)
            seen.append((on_device * 1).sum())
        assert torch.stack(seen).sum().item() == 2016


def test_child_of_fork_is_refused():
    import os

    torch.zeros(1, device="cuda")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device="cuda")
            os.write(write, b"no error")
        except RuntimeError as error:
            os.write(write, str(error).encode()[:200])
        os._exit(0)
    os.waitpid(child, 0)
    assert b"fork" in os.read(read, 200)


def test_item_and_numpy():
    assert torch.tensor(3.5, device="cuda").item() == 3.5
    assert torch.ones(2, 2, device="cuda").cpu().numpy().sum() == 4
    assert torch.ones(2, device="cuda").tolist() == [1, 1]
