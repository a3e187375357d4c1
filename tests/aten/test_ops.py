# SPDX-License-Identifier: Apache-2.0
"""Operators and modules, forward and backward, against the CPU."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from common import assert_same, gradients, tensors, to


def rand(*shape, grad=True, low=None):
    t = torch.randn(*shape)
    if low is not None:
        t = t.abs() + low
    return t.requires_grad_(grad)


def ints(high, *shape):
    return torch.randint(0, high, shape)


MASK = torch.tensor([[True, False, True], [False, True, True]])

# name: (function, inputs)
OPS = {
    "add": (lambda a, b: a + b, (rand(3, 4), rand(4))),
    "sub_alpha": (lambda a, b: torch.sub(a, b, alpha=2), (rand(3, 4), rand(3, 1))),
    "mul_scalar_tensor": (lambda a: a * torch.tensor(2.5), (rand(3, 4),)),
    "div": (lambda a, b: a / b, (rand(3, 4), rand(3, 4, low=0.5))),
    "pow": (lambda a: a**3, (rand(3, 4),)),
    "exp": (torch.exp, (rand(5),)),
    "log": (torch.log, (rand(5, low=0.1),)),
    "sqrt": (torch.sqrt, (rand(5, low=0.1),)),
    "rsqrt": (torch.rsqrt, (rand(5, low=0.1),)),
    "sin": (torch.sin, (rand(5),)),
    "tanh": (torch.tanh, (rand(5),)),
    "sigmoid": (torch.sigmoid, (rand(5),)),
    "erf": (torch.erf, (rand(5),)),
    "abs": (torch.abs, (rand(5),)),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), (rand(20),)),
    "where": (lambda a, b: torch.where(a > 0, a, b), (rand(4, 5), rand(4, 5))),
    "maximum": (torch.maximum, (rand(4, 5), rand(4, 5))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), (rand(4), rand(4))),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.5), (rand(4), rand(4), rand(4))),
    "relu": (F.relu, (rand(10),)),
    "gelu": (F.gelu, (rand(10),)),
    "gelu_tanh": (lambda a: F.gelu(a, approximate="tanh"), (rand(10),)),
    "silu": (F.silu, (rand(10),)),
    "softplus": (F.softplus, (rand(10),)),
    "leaky_relu": (F.leaky_relu, (rand(10),)),
    "elu": (F.elu, (rand(10),)),
    "glu": (F.glu, (rand(4, 6),)),
    "sum": (lambda a: a.sum(1, keepdim=True), (rand(3, 4, 5),)),
    "mean": (lambda a: a.mean((0, 2)), (rand(3, 4, 5),)),
    "var_mean": (lambda a: torch.var_mean(a, 1), (rand(3, 4),)),
    "amax": (lambda a: a.amax(1), (rand(3, 4),)),
    "max_dim": (lambda a: a.max(1), (rand(3, 4),)),
    "norm": (lambda a: a.norm(), (rand(3, 4),)),
    "vector_norm": (lambda a: torch.linalg.vector_norm(a, 3, 1), (rand(3, 4),)),
    "logsumexp": (lambda a: a.logsumexp(-1), (rand(3, 4),)),
    "cumsum": (lambda a: a.cumsum(1), (rand(3, 4),)),
    "prod": (lambda a: a.prod(1), (rand(3, 4),)),
    "sort": (lambda a: a.sort(1, descending=True), (rand(3, 7),)),
    "topk": (lambda a: a.topk(3, 1), (rand(3, 7),)),
    "cat": (lambda a, b: torch.cat([a, b], 1), (rand(3, 4), rand(3, 2))),
    "stack": (lambda a, b: torch.stack([a, b]), (rand(3, 4), rand(3, 4))),
    "split": (lambda a: [t * (i + 1) for i, t in enumerate(a.split([2, 3], 1))], (rand(3, 5),)),
    "slice_step": (lambda a: a[:, 1::2] * 2, (rand(3, 6),)),
    "transpose_contiguous": (lambda a: a.t().contiguous(), (rand(3, 6),)),
    "expand": (lambda a: a.expand(4, 3) * 2, (rand(1, 3),)),
    "flip": (lambda a: a.flip(0, 1), (rand(3, 4),)),
    "roll": (lambda a: a.roll(2, 1), (rand(3, 4),)),
    "tril": (torch.tril, (rand(4, 4),)),
    "gather": (lambda a, i: a.gather(1, i), (rand(3, 4), ints(4, 3, 2))),
    "scatter_add": (lambda a, i, s: a.scatter_add(1, i, s), (rand(3, 4), ints(4, 3, 2), rand(3, 2))),
    "index_select": (lambda a, i: a.index_select(0, i), (rand(5, 4), ints(5, 3))),
    "index": (lambda a, i: a[:, i], (rand(3, 5), ints(5, 4))),
    "index_put_accumulate": (lambda a, i, v: a.index_put((i,), v, accumulate=True), (rand(5, 3), ints(5, 4), rand(4, 3))),
    "masked_fill": (lambda a, m: a.masked_fill(m, -1.0), (rand(2, 3), MASK)),
    "masked_select": (lambda a, m: a.masked_select(m), (rand(2, 3), MASK)),
    "nonzero": (torch.nonzero, (MASK,)),
    "one_hot": (lambda i: F.one_hot(i, 5), (ints(5, 6),)),
    "unique": (lambda i: torch.unique(i, return_counts=True), (ints(5, 20),)),
    "bincount": (lambda i: torch.bincount(i, minlength=7), (ints(5, 20),)),
    "searchsorted": (lambda b, v: torch.searchsorted(b, v), (torch.arange(10.0), rand(4, grad=False))),
    "repeat_interleave": (lambda a: a.repeat_interleave(2, 1), (rand(3, 4),)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (rand(2, 3, 4), rand(2, 5, 4))),
    "mm": (torch.mm, (rand(3, 4), rand(4, 5))),
    "addmm": (torch.addmm, (rand(5), rand(3, 4), rand(4, 5))),
    "bmm": (torch.bmm, (rand(2, 3, 4), rand(2, 4, 5))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5))),
    "matmul_broadcast": (torch.matmul, (rand(2, 1, 3, 4), rand(5, 4, 6))),
    "linear": (F.linear, (rand(2, 3, 4), rand(5, 4), rand(5))),
    "softmax": (lambda a: a.softmax(1), (rand(3, 4),)),
    "log_softmax": (lambda a: a.log_softmax(0), (rand(3, 4),)),
    "cross_entropy": (lambda a, t: F.cross_entropy(a, t, ignore_index=1, label_smoothing=0.1), (rand(8, 5), ints(5, 8))),
    "nll_loss": (lambda a, t: F.nll_loss(a.log_softmax(1), t, reduction="sum"), (rand(8, 5), ints(5, 8))),
    "nll_loss2d": (lambda a, t: F.nll_loss(a.log_softmax(1), t), (rand(2, 5, 3, 3), ints(5, 2, 3, 3))),
    "mse_loss": (F.mse_loss, (rand(4, 5), rand(4, 5))),
    "smooth_l1": (F.smooth_l1_loss, (rand(4, 5), rand(4, 5))),
    "bce_logits": (F.binary_cross_entropy_with_logits, (rand(4, 5), torch.rand(4, 5))),
    "kl_div": (lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), (rand(4, 5), rand(4, 5))),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=2), (ints(6, 3, 4), rand(6, 5))),
    "embedding_scaled": (lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), (ints(6, 3, 4), rand(6, 5))),
    "embedding_bag": (lambda i, w: F.embedding_bag(i, w, mode="mean"), (ints(6, 3, 4), rand(6, 5))),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (5,), w, b), (rand(3, 4, 5), rand(5), rand(5))),
    "layer_norm_2d": (lambda a: F.layer_norm(a, (4, 5)), (rand(3, 4, 5),)),
    "rms_norm": (lambda a, w: F.rms_norm(a, (5,), w, 1e-6), (rand(3, 4, 5), rand(5))),
    "rms_norm_plain": (lambda a: F.rms_norm(a, (4, 5)), (rand(3, 4, 5),)),
    "group_norm": (lambda a, w, b: F.group_norm(a, 2, w, b), (rand(3, 4, 5), rand(4), rand(4))),
    "batch_norm": (lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True), (rand(6, 4, 3), rand(4), rand(4))),
    "conv1d": (lambda a, w, b: F.conv1d(a, w, b, padding=1), (rand(2, 3, 8), rand(4, 3, 3), rand(4))),
    "conv2d": (lambda a, w, b: F.conv2d(a, w, b, stride=2), (rand(2, 3, 8, 8), rand(4, 3, 3, 3), rand(4))),
    "conv2d_groups": (lambda a, w: F.conv2d(a, w, groups=4, padding=1), (rand(2, 4, 6, 6), rand(8, 1, 3, 3))),
    "conv_transpose2d": (lambda a, w: F.conv_transpose2d(a, w, stride=2), (rand(2, 3, 4, 4), rand(3, 4, 3, 3))),
    "max_pool2d": (lambda a: F.max_pool2d(a, 2), (rand(2, 3, 6, 6),)),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 2), (rand(2, 3, 6, 6),)),
    "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a, 2), (rand(2, 3, 7, 7),)),
    "interpolate": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), (rand(2, 3, 4, 4),)),
    "pad_reflect": (lambda a: F.pad(a, (1, 2), mode="reflect"), (rand(2, 3, 6),)),
    "unfold": (lambda a: F.unfold(a, 2), (rand(2, 3, 4, 4),)),
    "cdist": (torch.cdist, (rand(3, 4), rand(5, 4))),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.T + 5 * torch.eye(4, device=a.device)), (rand(4, 4),)),
    "solve": (lambda a, b: torch.linalg.solve(a + 5 * torch.eye(4, device=a.device), b), (rand(4, 4), rand(4, 2))),
    "complex": (lambda a, b: (torch.view_as_complex(a) * torch.view_as_complex(b).conj()).abs(), (rand(4, 2), rand(4, 2))),
    "rotary": (lambda a, f: torch.view_as_real(torch.view_as_complex(a) * torch.polar(torch.ones_like(f), f)), (rand(3, 4, 2), rand(4))),
    "logical": (lambda a, b: ((a > 0) & (b > 0)).any(1), (rand(3, 4), rand(3, 4))),
    "isfinite": (lambda a: torch.isfinite(a / 0).all(), (rand(3, grad=False),)),
    "arange": (lambda a: torch.arange(2, 9, 2, device=a.device) + a.sum().long() * 0, (rand(1, grad=False),)),
    "linspace": (lambda a: torch.linspace(0, 1, 7, device=a.device) + 0 * a, (rand(1, grad=False),)),
    "split_with_sizes_copy": (lambda a: torch.split_with_sizes_copy(a, [1, 2], 1), (rand(4, 3, grad=False),)),
    "chunk_cat": (lambda a, b: torch._chunk_cat([a, b], 0, 2), (rand(3, 4, grad=False), rand(2, 4, grad=False))),
}


@pytest.mark.parametrize("name", OPS)
def test_op(name):
    assert_same(*OPS[name])


MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3)), (4, 6)),
    "conv_net": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)), (2, 3, 6, 6)),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), (2, 5, 16)),
    "rms": (lambda: nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8), nn.SiLU()), (3, 8)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, shape = MODULES[name]
    module, x = make(), torch.randn(shape)
    copy = make()
    copy.load_state_dict(module.state_dict())
    copy.cuda()
    module(x).square().sum().backward()
    copy(x.cuda()).square().sum().backward()
    for (key, p), q in zip(module.named_parameters(), copy.parameters()):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5, msg=lambda m: f"{key}: {m}")
    for p, q in zip(module.buffers(), copy.buffers()):
        torch.testing.assert_close(q.cpu(), p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mul_scalar_tensor", "gelu", "sum", "softmax", "layer_norm", "rms_norm", "group_norm", "embedding", "cross_entropy"])
def test_dtype(name, dtype):
    """Narrow types are as near to float64 as on the CPU, up to a few roundings."""
    function, inputs = OPS[name]
    exact, exact_grads = gradients(function, to(inputs, "cpu", torch.float64))
    cpu, cpu_grads = gradients(function, to(inputs, "cpu", dtype))
    found, found_grads = gradients(function, to(inputs, "cuda", dtype))
    for e, c, f in zip(exact + exact_grads, cpu + cpu_grads, found + found_grads):
        assert f.dtype == dtype
        error, cpu_error = ((t.detach().cpu().double() - e.detach()).abs().max().item() for t in (f, c))
        assert error <= 1.25 * cpu_error + 4 * torch.finfo(dtype).eps * max(1.0, e.detach().abs().max().item())


def test_layouts():
    x = torch.randn(2, 3, 4, 5)
    for view in (lambda t: t.permute(3, 1, 0, 2), lambda t: t[:, :, ::2], lambda t: t[1:, 1:], lambda t: t.expand(2, 3, 4, 5),
                 lambda t: t.to(memory_format=torch.channels_last), lambda t: t.as_strided((2, 3), (7, 2), 5)):
        a, b = view(x), view(x.cuda())
        torch.testing.assert_close((b * 2 + b.sin()).cpu(), a * 2 + a.sin())
        torch.testing.assert_close(b.sum(-1).cpu(), a.sum(-1))
        assert (b * 2).stride() == (a * 2).stride()


def test_inplace_through_views():
    a, b = torch.zeros(4, 6), torch.zeros(4, 6, device="cuda")
    for t in (a, b):
        t[1:3, ::2].add_(1.5)
        t.t()[2].fill_(7)
        t.view(-1)[5:9].mul_(2).sub_(1)
        t[t > 6] = -1
        t.diagonal().zero_()
    torch.testing.assert_close(b.cpu(), a)


def test_inplace_gives_the_same_tensor_and_bumps_its_version():
    x = torch.ones(3, device="cuda")
    pointer, version = x.data_ptr(), x._version
    assert x.add_(1) is x and x.data_ptr() == pointer and x._version == version + 1


def test_out_resizes():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    for start in ((0,), (3, 4), (100,)):
        out = torch.empty(start, device="cuda")
        returned = torch.add(a.cuda(), b.cuda(), out=out.resize_(0) if start == (100,) else out)
        assert returned is out and out.shape == (3, 4)
        torch.testing.assert_close(out.cpu(), a + b)
    values, indices = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.long, device="cuda")
    torch.sort(a.cuda(), 1, out=(values, indices))
    torch.testing.assert_close(values.cpu(), a.sort(1)[0])
    columns = torch.empty(4, 3, device="cuda").t()
    torch.mul(a.cuda(), 2, out=columns)
    assert columns.stride() == (1, 3)
    torch.testing.assert_close(columns.cpu(), a * 2)


def test_half_to_float():
    x = torch.randn(4, 9).half()
    for function in (torch.softmax, torch.log_softmax):
        got = function(x.cuda(), 1, dtype=torch.float32)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.cpu(), function(x.float(), 1))
    leaf = x.cuda().requires_grad_()
    torch.log_softmax(leaf, 1, dtype=torch.float32)[:, 2].sum().backward()
    reference = x.float().requires_grad_()
    torch.log_softmax(reference, 1)[:, 2].sum().backward()
    assert leaf.grad.dtype == torch.float16
    torch.testing.assert_close(leaf.grad.cpu().float(), reference.grad, rtol=2e-3, atol=2e-3)


def test_layer_norm_statistics_are_float():
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    y, mean, rstd = torch.native_layer_norm(x, (64,), torch.ones_like(x[0]), torch.zeros_like(x[0]), 1e-5)
    assert (y.dtype, mean.dtype, rstd.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_devices_must_agree():
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device.*cuda:0.*cpu"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, torch.ones(3)])
    with pytest.raises(RuntimeError, match="same device.*cuda:0.*cuda:1"):
        x * torch.ones(3, device="cuda:1")
    assert (x + torch.tensor(1.0)).sum().item() == 6
    assert x[torch.tensor([0, 2])].device == x.device


def test_errors_are_pytorchs():
    with pytest.raises(RuntimeError, match="size of tensor"):
        torch.ones(3, device="cuda") + torch.ones(4, device="cuda")
    with pytest.raises(IndexError):
        torch.ones(3, device="cuda").sum(5)


# ------------------------------------------------------------------------------------------------------- optimizers

def train(device, make, steps=4, scaler=None):
    torch.manual_seed(7)
    parameters = [torch.randn(s).to(device).requires_grad_() for s in ((4, 5), (5,), (3, 3))]
    optimizer = make(parameters)
    for step in range(steps):
        for i, p in enumerate(parameters):
            p.grad = torch.sin(p.detach() * (step + i + 1))
        optimizer.step()
    return parameters


@pytest.mark.parametrize("mode", [{"foreach": True}, {"fused": True}, {"foreach": False}])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_optimizer(kind, mode):
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    make = lambda p: kind(p, lr=1e-2, weight_decay=0.1, **options, **mode)
    for expected, found in zip(train("cpu", make), train("cuda", make)):
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_fused_optimizer_skips_when_found_inf(kind):
    p = torch.ones(4, device="cuda", requires_grad=True)
    optimizer = kind([p], lr=0.1, fused=True)
    optimizer.grad_scale = torch.tensor(4.0, device="cuda")
    p.grad = torch.full_like(p, 8.0)
    optimizer.found_inf = torch.tensor(1.0, device="cuda")
    optimizer.step()
    assert torch.equal(p, torch.ones_like(p))
    optimizer.found_inf.zero_()
    optimizer.step()
    assert (p < 1).all()


def test_grad_scaler():
    model = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda", init_scale=2.0**10)
    before = model.weight.detach().clone()
    for factor, moves in ((float("inf"), False), (1.0, True)):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.ones(2, 4, device="cuda")).float().sum() * factor
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight, before) != moves
    assert scaler.get_scale() == 2.0**9


FOREACH = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "mul_scalar": lambda a, b: torch._foreach_mul(a, 3.0),
    "mul_scalars": lambda a, b: torch._foreach_mul(a, [1.0, 2.0, 3.0]),
    "mul_tensor": lambda a, b: torch._foreach_mul(a, torch.tensor(2.0, device=a[0].device)),
    "div": lambda a, b: torch._foreach_div(a, b),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, b, b, value=0.1),
    "addcmul_scalars": lambda a, b: torch._foreach_addcmul(a, b, b, torch.tensor([1.0, 2.0, 3.0])),
    "norm": lambda a, b: torch._foreach_norm(a, 2),
    "sqrt": lambda a, b: torch._foreach_sqrt(b),
    "pow": lambda a, b: torch._foreach_pow(a, 2),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach(name):
    a, b = [torch.randn(n, 3) for n in (1, 4, 7)], [torch.rand(n, 3) + 0.5 for n in (1, 4, 7)]
    for expected, found in zip(FOREACH[name](a, b), FOREACH[name](to(a, "cuda"), to(b, "cuda"))):
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected)


def test_foreach_inplace_and_copy():
    a = [torch.randn(n, 3, device="cuda") for n in (1, 4)]
    kept = [t.cpu() for t in a]
    pointers = [t.data_ptr() for t in a]
    torch._foreach_mul_(a, 2.0)
    torch._foreach_zero_(torch._foreach_add(a, 1.0))
    assert [t.data_ptr() for t in a] == pointers
    target = [torch.empty(n, 3, device="cuda", dtype=torch.bfloat16) for n in (1, 4)]
    torch._foreach_copy_(target, a)
    for t, k, c in zip(a, kept, target):
        torch.testing.assert_close(t.cpu(), k * 2)
        torch.testing.assert_close(c.cpu(), (k * 2).bfloat16())


def test_clip_grad_norm():
    for device in ("cpu", "cuda"):
        p = [torch.full((3,), float(i), device=device, requires_grad=True) for i in (1, 2)]
        for t in p:
            t.grad = t.detach().clone()
        norm = nn.utils.clip_grad_norm_(p, 1.0)
        assert abs(norm.item() - 15**0.5) < 1e-5
        assert abs(sum(t.grad.square().sum().item() for t in p) - 1) < 1e-4


# ------------------------------------------------------------------------------------------------------- FSDP and SyncBatchNorm

def test_fsdp_copies():
    gathered = torch.arange(24.0).view(2, 12)
    outs = {d: [torch.zeros(2, 5, device=d), torch.zeros(2, 7, device=d)] for d in ("cpu", "cuda")}
    for device, out in outs.items():
        torch.split_with_sizes_copy(gathered.to(device), [5, 7], dim=1, out=out)
    parts = [torch.randn(5, 3), torch.randn(4)]
    flat = {d: torch.empty(2, 16, device=d) for d in ("cpu", "cuda")}
    for device in flat:
        torch._chunk_cat(to(parts, device), dim=0, num_chunks=2, out=flat[device].view(2, -1)[:, :11])
    for e, f in zip(outs["cpu"], outs["cuda"]):
        assert torch.equal(f.cpu(), e)
    assert torch.equal(flat["cuda"][:, :11].cpu(), flat["cpu"][:, :11])


def test_batch_norm_in_parts():
    """The operators of SyncBatchNorm, joined over two halves, are a batch norm of the whole."""
    x, grad, w = torch.randn(6, 4, 5), torch.randn(6, 4, 5), torch.rand(4) + 0.5
    reference, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    mean0, var0 = torch.zeros(4), torch.ones(4)
    expected = F.batch_norm(reference, mean0, var0, weight, None, True, 0.1, 1e-5)
    expected.backward(grad)

    parts, grads, wd = [t.cuda() for t in x.split([2, 4])], [t.cuda() for t in grad.split([2, 4])], w.cuda()
    stats = [torch.batch_norm_stats(t, 1e-5) for t in parts]
    counts = torch.tensor([2.0 * 5, 4.0 * 5], device="cuda")
    running_mean, running_var = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0], torch.stack([s[0] for s in stats]), torch.stack([s[1] for s in stats]), running_mean, running_var, 0.1, 1e-5, counts)
    found = torch.cat([torch.batch_norm_elemt(t, wd, None, mean, invstd, 1e-5) for t in parts])
    torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(running_mean.cpu(), mean0)
    torch.testing.assert_close(running_var.cpu(), var0)

    sums = [torch.batch_norm_backward_reduce(g, t, mean, invstd, wd, True, True, True) for g, t in zip(grads, parts)]
    dy, dy_xmu = sum(s[0] for s in sums), sum(s[1] for s in sums)
    dx = torch.cat([torch.batch_norm_backward_elemt(g, t, mean, invstd, wd, dy, dy_xmu, counts.int()) for g, t in zip(grads, parts)])
    torch.testing.assert_close(dx.cpu(), reference.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sum(s[2] for s in sums).cpu(), weight.grad, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------------------- resources

def test_no_leak():
    import resource

    def loop(n):
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        for i in range(n):
            if i % 100 == 0:
                torch.cuda.synchronize()  # work that is queued is no leak
            y = F.layer_norm(F.dropout(torch.cat([x, x * 2]).softmax(1), 0.1), (64,))
            y.sum().backward()
            x.grad = None
            torch._foreach_mul([x.detach(), y.detach()], 2.0)

    loop(500)
    before, held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.memory_allocated()
    loop(3000)
    assert torch.cuda.memory_allocated() <= held + (1 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "more than 4 MiB grown in 3,000 steps"


def test_threads_and_streams():
    """The same work from several threads, each on its own stream, gives the same numbers as alone."""
    import threading

    def work(seed):
        g = torch.Generator("cuda").manual_seed(seed)
        x = torch.randn(32, 32, device="cuda", generator=g, requires_grad=True)
        for _ in range(20):
            (x.softmax(1) @ x).tanh().sum().backward()
        return x.grad

    alone = [work(i).cpu() for i in range(4)]
    together = [None] * 4

    def run(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            together[i] = work(i).cpu()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for a, b in zip(alone, together):
        assert torch.equal(a, b)
