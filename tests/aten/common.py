# SPDX-License-Identifier: Apache-2.0
"""What the tests of the ATen layer share: the same computation on the CPU and on the virtual node, compared."""
import torch


def to(value, device, dtype=None):
    """`value` on `device`: tensors copied (leaves keep requires_grad), devices replaced, containers walked."""
    if isinstance(value, torch.Tensor):
        moved = value.detach().to(device)
        if dtype is not None and moved.is_floating_point():
            moved = moved.to(dtype)
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device):
        return torch.device(device)
    if isinstance(value, (list, tuple)):
        return type(value)(to(v, device, dtype) for v in value)
    if isinstance(value, dict):
        return {k: to(v, device, dtype) for k, v in value.items()}
    return value


def tensors(value):
    """All tensors in `value`, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    return []


def gradients(function, inputs):
    """Results of function(*inputs) and the gradients of the float inputs for fixed output gradients."""
    results = tensors(function(*inputs))
    wanted = [t for t in tensors(inputs) if t.requires_grad]
    differentiable = [r for r in results if r.requires_grad]
    if not differentiable or not wanted:
        return results, []
    weights = [torch.cos(torch.arange(r.numel(), dtype=torch.float64)).reshape(r.shape).to(r) for r in differentiable]
    return results, list(torch.autograd.grad(differentiable, wanted, weights, allow_unused=True))


def assert_same(function, inputs, rtol=1e-5, atol=1e-6):
    """function(*inputs) and its gradients are the same on the virtual node as on the CPU."""
    expected, expected_grads = gradients(function, to(inputs, "cpu"))
    found, found_grads = gradients(function, to(inputs, "cuda"))
    assert len(expected) == len(found)
    for e, f in zip(expected + expected_grads, found + found_grads):
        assert (e is None) == (f is None)
        if e is None:
            continue
        assert f.is_cuda, "a result is not on the device"
        assert e.dtype == f.dtype and e.shape == f.shape
        torch.testing.assert_close(f.cpu(), e.detach().cpu() if e.is_cuda else e, rtol=rtol, atol=atol, equal_nan=True)
