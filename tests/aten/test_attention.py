# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention in each variant against its definition in float64."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten


def definition(q, k, v, bias=None, hidden=None, scale=None):
    """[B, H, L, D] in float64; rows that see no key give 0. Returns the output and the log-sum-exp."""
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.size(-1)))
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse.isinf(), 0).unsqueeze(-1)).exp()
    return weights @ v, lse


def above(l, s, shift):
    return torch.arange(s)[None, :] > torch.arange(l)[:, None] + shift


def operands(l, s, heads=4, kv_heads=4, d=8, dv=8, dtype=torch.float32):
    shapes = ((2, heads, l, d), (2, kv_heads, s, d), (2, kv_heads, s, dv))
    return [torch.randn(shape).to("cuda", dtype).requires_grad_() for shape in shapes]


def doubles(tensors):
    return [t.detach().cpu().double().requires_grad_() for t in tensors]


def check(run, reference, inputs, tolerance):
    """Output and gradients of run(*inputs) against reference(*inputs in float64)."""
    exact = doubles(inputs)
    expected, found = reference(*exact), run(*inputs)
    grad = torch.randn(expected.shape, dtype=torch.float64)
    expected.backward(grad)
    found.backward(grad.to(found))
    torch.testing.assert_close(found.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance)
    for e, f in zip(exact, inputs):
        assert f.grad.dtype == f.dtype
        torch.testing.assert_close(f.grad.cpu().double(), e.grad, rtol=tolerance, atol=tolerance)


BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends(backend, causal):
    inputs = operands(9, 9, dtype=torch.bfloat16)

    def run(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    check(run, lambda q, k, v: definition(q, k, v, hidden=above(9, 9, 0) if causal else None)[0], inputs, 5e-2)


def test_default_choice_in_each_type():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2), (torch.float64, 1e-12)):
        inputs = operands(7, 7, d=16, dv=16, dtype=dtype)
        check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
              lambda q, k, v: definition(q, k, v, hidden=above(7, 7, 0))[0], inputs, tolerance)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
def test_grouped_queries(backend):
    inputs = operands(8, 8, heads=6, kv_heads=2, dtype=torch.float16)

    def run(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    check(run, lambda q, k, v: definition(q, k, v, hidden=above(8, 8, 0))[0], inputs, 2e-2)


@pytest.mark.parametrize("l, s", [(5, 8), (8, 5)])
def test_causal_rectangles(l, s):
    """Flash aligns the causal diagonal at the bottom right; memory-efficient and cuDNN at the top left."""
    for op, shift, extra in ((aten._scaled_dot_product_flash_attention, s - l, ()),
                             (aten._scaled_dot_product_efficient_attention, 0, (None, True)),
                             (aten._scaled_dot_product_cudnn_attention, 0, (None, True))):
        inputs = operands(l, s)
        check(lambda q, k, v: op(q, k, v, *extra, 0.0, True)[0],
              lambda q, k, v: definition(q, k, v, hidden=above(l, s, shift))[0], inputs, 1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 1, 5, 6), (1, 4, 5, 6), (2, 1, 5, 6)])
def test_bias_and_its_gradient(shape):
    q, k, v = operands(5, 6)
    bias = torch.randn(shape, device="cuda", requires_grad=True)

    def run(q, k, v, bias):
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(2, 4, 5, 6), scale=0.3)

    check(run, lambda q, k, v, bias: definition(q, k, v, bias, scale=0.3)[0], [q, k, v, bias], 1e-5)


def test_boolean_mask_and_hidden_rows():
    q, k, v = operands(5, 6)
    mask = torch.rand(2, 1, 5, 6) > 0.4
    mask[:, :, 2] = False
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask.cuda()),
          lambda q, k, v: definition(q, k, v, hidden=~mask)[0], [q, k, v], 1e-5)


def test_logsumexp_shapes():
    q, k, v = operands(5, 6)
    expected = definition(*doubles([q, k, v]))[1].float().detach()
    flash = aten._scaled_dot_product_flash_attention(q, k, v)
    torch.testing.assert_close(flash[1].detach().cpu(), expected)
    cudnn = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    torch.testing.assert_close(cudnn[1].detach().cpu(), expected.unsqueeze(-1))
    efficient = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)
    assert efficient[1].shape == (2, 4, 32)
    torch.testing.assert_close(efficient[1][..., :5].detach().cpu(), expected)
    assert aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[1].shape == (2, 4, 0)
    assert (flash[4], flash[5]) == (5, 6)


def test_output_is_laid_out_by_token():
    q, k, v = operands(5, 5, dtype=torch.bfloat16)
    assert aten._scaled_dot_product_flash_attention(q, k, v)[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("op, extra", [(aten._scaled_dot_product_flash_attention, ()),
                                       (aten._scaled_dot_product_efficient_attention, (None, True)),
                                       (aten._scaled_dot_product_cudnn_attention, (None, True))])
def test_dropout(op, extra):
    """The mask has the right rate, is drawn anew each call and repeats with the state; backward uses the forward's mask."""
    q, k, v = operands(16, 32, heads=8, kv_heads=8)
    q, v = torch.zeros_like(q).requires_grad_(), torch.ones_like(v).requires_grad_()
    state = torch.cuda.get_rng_state()
    first, second = op(q, k, v, *extra, 0.25, False)[0], op(q, k, v, *extra, 0.25, False)[0]
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    again = op(q, k, v, *extra, 0.25, False)[0]
    assert torch.equal(first, again)
    assert abs(first.mean().item() - 1) < 0.03
    # Output and dV are the same weighted sums over keys and queries: Σ dV = Σ O for unit gradients.
    again.sum().backward()
    torch.testing.assert_close(v.grad.sum(), again.detach().sum())


def test_slices_are_the_whole():
    """A problem that is larger than what is held at once, against a small batch of it."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 2304, 4, device="cuda") for _ in range(3))
    whole = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    for b in range(3):
        for h in range(2):
            part = aten._scaled_dot_product_flash_attention(*(t[b:b + 1, h:h + 1] for t in (q, k, v)), 0.0, True)[0]
            torch.testing.assert_close(whole[b:b + 1, h:h + 1], part)


def test_packed_sequences():
    """_flash_attention_forward over packed sequences is attention over each."""
    lengths = [3, 5, 1]
    starts = torch.tensor([0, 3, 8, 9], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(9, 2, 8, device="cuda", requires_grad=True) for _ in range(3))

    def run(q, k, v):
        return aten._flash_attention_forward(q, k, v, starts, starts, 5, 5, 0.0, True, False)[0]

    def reference(q, k, v):
        parts = zip(*(t.split(lengths) for t in (q, k, v)))
        return torch.cat([definition(*(t.transpose(0, 1)[None] for t in part), hidden=above(len(part[0]), len(part[0]), 0))[0][0].transpose(0, 1)
                          for part in parts])

    check(run, reference, [q, k, v], 1e-5)


def test_window():
    q, k, v = (torch.randn(2, 7, 3, 8, device="cuda", requires_grad=True) for _ in range(3))
    distance = torch.arange(7)[None, :] - torch.arange(7)[:, None]

    def reference(q, k, v):
        return definition(*(t.transpose(1, 2) for t in (q, k, v)), hidden=(distance > 0) | (distance < -2))[0].transpose(1, 2)

    check(lambda q, k, v: aten._flash_attention_forward(q, k, v, None, None, 7, 7, 0.0, True, False, window_size_left=2, window_size_right=0)[0],
          reference, [q, k, v], 1e-5)
