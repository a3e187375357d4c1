# SPDX-License-Identifier: Apache-2.0
"""A small GPT against the CPU, in float32 and bfloat16."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, bias, norm):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, self.heads, c // self.heads).transpose(1, 2) for h in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, bias, norm, vocabulary=65, width=64, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, 4, bias, norm) for _ in range(layers))
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, False)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def gradients(bias, norm, device, dtype):
    torch.manual_seed(1)
    model = GPT(bias, norm).to(device, dtype)
    ids = torch.randint(0, 65, (4, 33)).to(device)
    model(ids[:, :-1], ids[:, 1:]).backward()
    return {name: p.grad.cpu().double() for name, p in model.named_parameters()}


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("bias", [False, True])
def test_first_step_gradients(bias, norm):
    exact, found = gradients(bias, norm, "cpu", torch.float32), gradients(bias, norm, "cuda", torch.float32)
    for name in exact:
        error = (found[name] - exact[name]).norm() / exact[name].norm().clamp_min(1e-12)
        assert error <= 1e-5 or exact[name].norm() < 1e-7, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_bfloat16_is_as_near_as_the_cpu(norm):
    exact = gradients(True, norm, "cpu", torch.float32)
    error = {}
    for device in ("cpu", "cuda"):
        found = gradients(True, norm, device, torch.bfloat16)
        error[device] = max(((found[n] - exact[n]).norm() / exact[n].norm()).item() for n in exact if exact[n].norm() > 1e-6)
    assert error["cuda"] <= 1.25 * error["cpu"], error


def test_autocast_training_falls_and_repeats():
    def run():
        torch.manual_seed(3)
        model = GPT(False, nn.RMSNorm).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        ids = torch.randint(0, 65, (8, 33), device="cuda")
        losses = []
        for _ in range(15):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(ids[:, :-1], ids[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    first = run()
    assert first[-1] < 0.6 * first[0]
    assert run() == first
