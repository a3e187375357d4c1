# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the GPU's values where promised, and the generator's semantics everywhere."""
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def offset():
    return torch.cuda.default_generators[0].get_offset()


def test_values_of_a_gpu():
    """Values that PyTorch prints on NVIDIA GPUs after manual_seed(0)."""
    torch.manual_seed(0)
    torch.testing.assert_close(torch.rand(8, device="cuda").cpu(), torch.tensor([0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203]),
                               rtol=0, atol=5e-5)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.randn(8, device="cuda").cpu(),
                               torch.tensor([-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284]), rtol=0, atol=5e-5)


def test_grid_of_a_large_tensor():
    """148 SMs × 2048 threads: element i + 303104·j of a large tensor is word j of the block that element i of a small one has word 0 of."""
    threads = 148 * 2048
    assert torch.cuda.get_device_properties(0).multi_processor_count == 148
    torch.manual_seed(5)
    large = torch.rand(threads * 4 + 10, device="cuda")
    torch.manual_seed(5)
    small = torch.rand(1000, device="cuda")
    assert torch.equal(large[:1000], small)
    assert not torch.equal(large[threads:threads + 1000], small)
    # The second round of the grid has the next counter, which a small tensor has at the next offset.
    assert torch.equal(large[threads * 4:], torch.rand(10, device="cuda"))


def test_offset_moves_as_on_a_gpu():
    torch.manual_seed(0)
    for run, step in ((lambda: torch.rand(10, device="cuda"), 4), (lambda: torch.randn(148 * 2048 * 4 + 1, device="cuda"), 8),
                      (lambda: F.dropout(torch.ones(10, device="cuda")), 4), (lambda: torch.rand(0, device="cuda"), 0),
                      (lambda: torch.rand(3, device="cuda", dtype=torch.float64), 4)):
        before = offset()
        run()
        assert offset() - before == step


@pytest.mark.parametrize("draw", [
    lambda: torch.rand(100, device="cuda"), lambda: torch.randn(100, device="cuda"), lambda: torch.randint(0, 1 << 40, (100,), device="cuda"),
    lambda: torch.randint(-5, 5, (100,), device="cuda"), lambda: torch.randperm(100, device="cuda"), lambda: torch.empty(100, device="cuda").exponential_(),
    lambda: torch.empty(100, device="cuda").log_normal_(), lambda: torch.empty(100, device="cuda").cauchy_(),
    lambda: torch.empty(100, device="cuda").geometric_(0.3), lambda: torch.bernoulli(torch.full((100,), 0.3, device="cuda")),
    lambda: torch.empty(100, device="cuda").bernoulli_(0.3), lambda: torch.multinomial(torch.ones(100, device="cuda"), 20),
    lambda: torch.multinomial(torch.ones(100, device="cuda"), 50, replacement=True), lambda: torch.poisson(torch.full((100,), 3.0, device="cuda")),
    lambda: torch.normal(torch.zeros(100, device="cuda"), torch.ones(100, device="cuda")), lambda: torch._standard_gamma(torch.ones(100, device="cuda")),
    lambda: F.dropout(torch.ones(100, device="cuda"), 0.4), lambda: F.rrelu(-torch.ones(100, device="cuda"), training=True),
    lambda: torch.rand(100, device="cuda", dtype=torch.bfloat16), lambda: torch.randn(10, 10, device="cuda", dtype=torch.complex64),
    lambda: F.alpha_dropout(torch.ones(100, device="cuda"), 0.4, training=True), lambda: F.gumbel_softmax(torch.zeros(10, 10, device="cuda")),
])
def test_semantics(draw):
    """Seeded runs repeat, calls differ, a restored state repeats, and the CPU's generator does not move."""
    torch.manual_seed(3)
    host = torch.get_rng_state()
    first, second = draw(), draw()
    state = torch.cuda.get_rng_state()
    third = draw()
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(), third)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert first.is_cuda


def test_generators_and_devices():
    g = torch.Generator("cuda").manual_seed(11)
    a = torch.rand(5, device="cuda", generator=g)
    torch.manual_seed(11)
    assert torch.equal(a, torch.rand(5, device="cuda"))
    assert torch.equal(a.cpu(), torch.rand(5, device="cuda:1").cpu())
    with torch.random.fork_rng(devices=[0]):
        inner = torch.rand(5, device="cuda")
    assert torch.equal(inner, torch.rand(5, device="cuda"))
    with pytest.raises(RuntimeError, match="cuda"):
        torch.rand(5, device="cuda", generator=torch.Generator())


def test_distributions():
    n = 200_000
    u, z = torch.rand(n, device="cuda"), torch.randn(n, device="cuda")
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 5e-3 and abs(u.var() - 1 / 12) < 2e-3
    assert abs(z.mean()) < 1e-2 and abs(z.var() - 1) < 2e-2
    assert abs(torch.empty(n, device="cuda").bernoulli_(0.3).mean() - 0.3) < 5e-3
    assert abs(torch.empty(n, device="cuda").exponential_(2.0).mean() - 0.5) < 1e-2
    i = torch.randint(0, 10, (n,), device="cuda")
    assert (torch.bincount(i, minlength=10) / n - 0.1).abs().max() < 5e-3
    d = torch.empty(n, device="cuda", dtype=torch.float64).normal_(1, 2)
    assert abs(d.mean() - 1) < 3e-2 and abs(d.var() - 4) < 0.1


def test_strided_fill_numbers_elements_in_memory_order():
    torch.manual_seed(2)
    plain = torch.rand(6, device="cuda")
    torch.manual_seed(2)
    assert torch.equal(torch.empty(2, 3, device="cuda").t().uniform_().t().flatten(), plain)
    torch.manual_seed(2)
    gaps = torch.zeros(6, 2, device="cuda")
    gaps[:, 0].uniform_()
    assert torch.equal(gaps[:, 0], plain) and (gaps[:, 1] == 0).all()


@pytest.mark.parametrize("n", [1000, 1001, 1002])
def test_dropout_mask_and_backward(n):
    x = torch.ones(n, device="cuda", requires_grad=True)
    y = F.dropout(x, 0.25)
    assert (x == 1).all(), "the input is written"
    kept = y != 0
    assert abs(kept.float().mean() - 0.75) < 0.06
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(F.dropout(x, 0.5, training=False), x) and (F.dropout(x, 1.0) == 0).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_repeats_dropout(reentrant):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.2, batch_first=True).cuda()
    x = torch.randn(2, 5, 16, device="cuda", requires_grad=True)

    def gradients(run):
        torch.manual_seed(9)
        layer.zero_grad()
        run(x).square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    for a, b in zip(gradients(layer), gradients(lambda t: checkpoint(layer, t, use_reentrant=reentrant))):
        assert torch.equal(a, b)


def test_threads_do_not_change_the_numbers():
    """Each thread with its own generator: the numbers of a thread do not depend on the others."""
    expected = [torch.randn(500, device="cuda", generator=torch.Generator("cuda").manual_seed(i)) for i in range(6)]
    found = [None] * 6

    def run(i):
        g = torch.Generator("cuda").manual_seed(i)
        found[i] = torch.randn(500, device="cuda", generator=g)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for e, f in zip(expected, found):
        assert torch.equal(e, f)
