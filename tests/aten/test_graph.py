# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of PyTorch: capture, replay, random numbers, pools and the errors of what cannot be captured. Registered once
for each order of execution (B200OPT_VNODE_ORDER)."""
import ctypes
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

REPLAYS = 100


def capture(function, warm_up=2, **options):
    """function() captured after a warm-up on a side stream, as PyTorch's documentation asks; the graph and what it returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = function()
    return graph, result


class Block(nn.Module):
    """A transformer block with what a training step has: attention, both norms, dropout, an activation."""

    def __init__(self, width=32, heads=4, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, l, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, l, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, l, w)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class Model(nn.Module):
    def __init__(self, words=50, width=32, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, dropout=dropout) for _ in range(2)))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


class Training:
    """One model, its optimizer, and a step that can be captured: static inputs, gradients that stay where they are."""

    def __init__(self, dropout=0.0, dtype=torch.float32, optimizer=torch.optim.AdamW, **options):
        torch.manual_seed(7)
        self.model = Model(dropout=dropout).to("cuda", dtype)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2, **options)
        self.tokens = torch.zeros(4, 16, dtype=torch.long, device="cuda")
        self.targets = torch.zeros(4, 16, dtype=torch.long, device="cuda")

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        return loss

    def feed(self, batch):
        self.tokens.copy_(batch[0])
        self.targets.copy_(batch[1])


def batches(count):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randint(50, (4, 16), generator=generator), torch.randint(50, (4, 16), generator=generator))
            for _ in range(count)]


def test_replay_reads_inputs_where_they_are():
    x, w = torch.randn(16, 16, device="cuda"), torch.randn(16, 16, device="cuda")

    def program():
        return torch.softmax((x @ w).relu() + x.cumsum(0), -1).sum(1)

    graph, result = capture(program)
    for _ in range(REPLAYS):
        x.copy_(torch.randn(16, 16))
        graph.replay()
        torch.testing.assert_close(result, program())


def test_nothing_runs_during_the_capture():
    counter = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        counter.add_(1)
    assert not torch.cuda.is_current_stream_capturing()
    assert counter.item() == 0
    for _ in range(3):
        graph.replay()
    assert counter.item() == 3


@pytest.mark.parametrize("dtype,optimizer,options", [
    (torch.float32, torch.optim.AdamW, {"capturable": True}),
    (torch.float32, torch.optim.AdamW, {"capturable": True, "fused": True}),
    (torch.float32, torch.optim.SGD, {"momentum": 0.9}),
    (torch.bfloat16, torch.optim.AdamW, {"capturable": True, "foreach": True}),
], ids=["adamw", "fused", "sgd", "bf16"])
def test_full_training_step(dtype, optimizer, options):
    warm_up = 3
    data = batches(warm_up + REPLAYS)
    plain = Training(dtype=dtype, optimizer=optimizer, **options)
    expected = []
    for batch in data:
        plain.feed(batch)
        expected.append(plain.step().item())

    graphed = Training(dtype=dtype, optimizer=optimizer, **options)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    found = []
    with torch.cuda.stream(side):
        for batch in data[:warm_up]:
            graphed.feed(batch)
            found.append(graphed.step().item())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = graphed.step()
    for batch in data[warm_up:]:
        graphed.feed(batch)
        graph.replay()
        found.append(loss.item())
    # the same kernels in the same order: the same bits
    assert found == expected
    for p, q in zip(plain.model.parameters(), graphed.model.parameters()):
        assert torch.equal(p, q)


def test_dropout_advances_with_every_replay():
    x = torch.ones(4096, device="cuda")
    graph, result = capture(lambda: F.dropout(x, 0.5))
    masks = []
    for _ in range(10):
        graph.replay()
        masks.append(result.clone())
    for i, one in enumerate(masks):
        assert 0.4 < (one == 0).float().mean().item() < 0.6
        assert not any(torch.equal(one, other) for other in masks[:i])


def test_random_numbers_follow_the_seed():
    def draw():
        return torch.rand(100, device="cuda"), torch.randn(100, device="cuda"), torch.randint(1000, (100,), device="cuda")

    graph, results = capture(draw)

    def replays(seed):
        torch.cuda.manual_seed(seed)
        found = []
        for _ in range(5):
            graph.replay()
            found.append([r.clone() for r in results])
        return found

    first, again, other = replays(5), replays(5), replays(6)
    torch.cuda.manual_seed(5)
    eager = [draw() for _ in range(5)]
    for i in range(5):
        for j in range(3):
            assert torch.equal(first[i][j], again[i][j])
            assert torch.equal(first[i][j], eager[i][j])  # a replay takes as many numbers as a call
            assert not torch.equal(first[i][j], other[i][j])
            assert i == 0 or not torch.equal(first[i][j], first[i - 1][j])


def test_a_generator_of_its_own():
    generator = torch.Generator(device="cuda").manual_seed(11)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        drawn = torch.rand(64, device="cuda", generator=generator)
    graph.replay()
    first = drawn.clone()
    graph.replay()
    assert not torch.equal(first, drawn)
    generator.manual_seed(11)
    graph.replay()
    assert torch.equal(first, drawn)


def test_training_with_dropout():
    data = batches(20)
    losses = []
    for _ in range(2):
        training = Training(dropout=0.1, capturable=True)
        training.feed(data[0])
        graph, loss = capture(training.step, warm_up=3)
        torch.cuda.manual_seed(1)
        found = []
        for batch in data:
            training.feed(batch)
            graph.replay()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == len(data)


def test_make_graphed_callables():
    torch.manual_seed(0)
    plain, graphed = Block().cuda(), Block().cuda()
    graphed.load_state_dict(plain.state_dict())
    sample = torch.randn(2, 8, 32, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(graphed, (sample,))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, graphed)]
    for _ in range(20):
        x = torch.randn(2, 8, 32, device="cuda")
        grads = []
        for module, optimizer in zip((plain, graphed), optimizers):
            own = x.clone().requires_grad_()
            optimizer.zero_grad(set_to_none=True)
            module(own).square().mean().backward()
            optimizer.step()
            grads.append(own.grad)
        torch.testing.assert_close(grads[0], grads[1])
    for p, q in zip(plain.parameters(), graphed.parameters()):
        torch.testing.assert_close(p, q)


def test_graphed_callables_share_a_pool():
    torch.manual_seed(0)
    modules = [nn.Linear(16, 16).cuda(), nn.Sequential(nn.Linear(16, 16), nn.GELU()).cuda()]
    sample = torch.randn(4, 16, device="cuda", requires_grad=True)
    expected_modules = [nn.Linear(16, 16).cuda(), nn.Sequential(nn.Linear(16, 16), nn.GELU()).cuda()]
    for e, m in zip(expected_modules, modules):
        e.load_state_dict(m.state_dict())
    one, two = torch.cuda.make_graphed_callables(tuple(modules), ((sample,), (sample.clone().detach().requires_grad_(),)))
    for _ in range(5):
        x = torch.randn(4, 16, device="cuda")
        torch.testing.assert_close(two(one(x)), expected_modules[1](expected_modules[0](x)))


def test_graphs_that_share_a_pool():
    x = torch.randn(64, device="cuda")
    first, a = capture(lambda: (x * 2).cos())
    second, b = capture(lambda: a.sin() + x, pool=first.pool())
    assert first.pool() == second.pool()
    for _ in range(10):
        x.copy_(torch.randn(64))
        first.replay()
        second.replay()
        torch.testing.assert_close(b, (x * 2).cos().sin() + x)


def test_memory_of_a_graph_goes_back():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    x = torch.randn(1 << 20, device="cuda")
    for _ in range(5):
        graph, result = capture(lambda: (x + 1) * (x + 2))
        graph.replay()
        assert torch.equal(result, (x + 1) * (x + 2))
        del result
        graph.reset()
        del graph
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_branches_on_side_streams():
    x, y = torch.randn(256, device="cuda"), torch.empty(256, device="cuda")
    sides = [torch.cuda.Stream() for _ in range(3)]

    def program():
        main = torch.cuda.current_stream()
        parts = []
        for i, side in enumerate(sides):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                parts.append((x + i).sin())
        for side in sides:
            main.wait_stream(side)
        y.copy_(sum(parts))
        return y

    graph, _ = capture(program)
    for _ in range(20):
        x.copy_(torch.randn(256))
        graph.replay()
        torch.testing.assert_close(y, sum((x + i).sin() for i in range(3)))


def test_replays_on_other_streams():
    counter = torch.zeros(1, device="cuda")
    graph, _ = capture(lambda: counter.add_(1), warm_up=0)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for i in range(30):
        with torch.cuda.stream(streams[i % 3]):
            graph.replay()
    torch.cuda.synchronize()
    assert counter.item() == 30


def test_events_inside_a_graph_measure_it():
    x = torch.randn(1 << 16, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))

    def program():
        start.record()
        result = x * 2 + 1
        end.record()
        return result

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    graph.replay()
    torch.cuda.synchronize()
    first = start.elapsed_time(end)
    graph.replay()
    torch.cuda.synchronize()
    assert first > 0 and start.elapsed_time(end) == first


def test_autocast_and_scaler():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    x, target = torch.randn(16, 32, device="cuda"), torch.randn(16, 8, device="cuda")

    def step():
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = F.mse_loss(model(x), target)
        loss.backward()
        return loss

    graph, loss = capture(step)
    for _ in range(5):
        x.copy_(torch.randn(16, 32))
        graph.replay()
        captured = loss.item(), [p.grad.clone() for p in model.parameters()]
        grads = [p.grad for p in model.parameters()]
        expected = step().item()
        assert captured[0] == expected
        for g, p, own in zip(captured[1], model.parameters(), grads):
            assert torch.equal(g, p.grad)
            p.grad = own  # where the graph writes


def test_graphviz_of_a_captured_graph(tmp_path):
    x = torch.randn(16, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        (x + 1).exp()
    path = tmp_path / "graph.dot"
    runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
    assert runtime.cudaGraphDebugDotPrint(ctypes.c_void_p(graph.raw_cuda_graph()), str(path).encode(), 1) == 0
    text = path.read_text()
    assert text.startswith("digraph") and "add" in text and "exp" in text and "->" in text
    dumped = tmp_path / "dumped.dot"
    if hasattr(torch._C._CUDAGraph, "debug_dump"):
        graph.enable_debug_mode()
        graph.debug_dump(str(dumped))
        assert dumped.read_text() == text
    else:  # by cuda.bindings, which bring a runtime of NVIDIA's that does not run above the node's driver
        with pytest.raises(RuntimeError, match="cudaErrorNotSupported|cuda.bindings"):
            graph.debug_dump(str(dumped))


# What cannot be captured: an error of PyTorch, the capture is lost, and everything works afterwards.

def refused(action, **options):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises((RuntimeError, torch.AcceleratorError)) as caught:
        with torch.cuda.graph(graph, **options):
            action()
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    x = torch.ones(4, device="cuda")
    assert (x + 1).sum().item() == 8
    return str(caught.value)


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("action", [
    lambda x: x.sum().item(),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: torch.unique(x),
    lambda x: x.cpu(),
    lambda x: torch.cuda.synchronize(),
    lambda x: torch.cuda.current_stream().synchronize(),
    lambda x: torch.cuda.current_stream().query(),
    lambda x: torch.tensor([1.0, 2.0]).cuda() + x[:2],
], ids=["item", "nonzero", "mask", "unique", "cpu", "synchronize", "stream", "query", "upload"])
def test_refusals(mode, action):
    x = torch.linspace(-1, 1, 64, device="cuda")
    refused(lambda: (x.add_(1), action(x)), capture_error_mode=mode)


def test_a_captured_event_cannot_be_waited_for():
    event = torch.cuda.Event()

    def action():
        event.record()
        event.synchronize()

    assert "captur" in refused(action)


def test_an_unjoined_branch_is_refused():
    x, side = torch.linspace(-1, 1, 64, device="cuda"), torch.cuda.Stream()

    def action():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)

    assert "unjoined" in refused(action)


def test_modes_and_other_threads():
    """An allocation of another thread spoils a global capture and no other."""
    def allocate(results):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(64 << 20))
                torch.cuda.current_stream().synchronize()
            results.append(None)
        except Exception as error:  # noqa: BLE001 - reported to the test
            results.append(error)

    for mode in ("global", "thread_local", "relaxed"):
        torch.cuda.empty_cache()
        x, results = torch.ones(16, device="cuda"), []
        graph = torch.cuda.CUDAGraph()
        failed = None
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                x.add_(1)
                thread = threading.Thread(target=allocate, args=(results,))
                thread.start()
                thread.join()
                x.add_(1)
        except Exception as error:  # noqa: BLE001
            failed = error
        assert (failed is not None) == (mode == "global"), (mode, failed)
        assert (results[0] is not None) == (mode == "global"), (mode, results)


# Programs of two ranks. Each ends by saying that it is done and how many races the checker reported.
RANKS_BEGIN = r"""
import ctypes, os
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # PyTorch wants it so for collectives in graphs
import torch, torch.distributed as dist, torch.nn as nn
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
def on_a_side_stream(function):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return result
"""
RANKS_END = r"""
torch.cuda.synchronize()
graph.reset()
dist.destroy_process_group()
races = ctypes.CDLL("libb200vnode.so").vnode_race_count
races.restype = ctypes.c_uint64
print(f"rank {rank} done, {races()} races", flush=True)
"""

COLLECTIVES = r"""
x = torch.zeros(1000, device="cuda")
y = torch.zeros(500 * world * 2, device="cuda")
def program():
    z = x * 2
    dist.all_reduce(z)
    dist.all_gather_into_tensor(y, z)
    part = torch.empty(1000, device="cuda")
    dist.reduce_scatter_tensor(part, y)
    return z, part
on_a_side_stream(program)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z, part = program()
for i in range(30):
    x.fill_(i + rank)
    graph.replay()
    torch.cuda.synchronize()
    total = 2.0 * sum(i + r for r in range(world))
    assert torch.all(z == total), (i, z[0].item(), total)
    assert torch.all(y == total) and torch.all(part == world * total), (i, part[0].item())
"""

DATA_PARALLEL = r"""
WARM_UP, STEPS = 11, 31  # DDP has to be warm for 11 steps before a capture
def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    parallel = on_a_side_stream(lambda: nn.parallel.DistributedDataParallel(model, device_ids=[rank]))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    x, y = torch.zeros(8, 16, device="cuda"), torch.zeros(8, 4, device="cuda")
    def feed(i):
        generator = torch.Generator().manual_seed(100 * i + rank)
        x.copy_(torch.randn(8, 16, generator=generator))
        y.copy_(torch.randn(8, 4, generator=generator))
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (parallel(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return feed, step, model
feed, step, plain = build()
expected = []
for i in range(STEPS):
    feed(i)
    expected.append(step().item())
feed, step, graphed = build()
def warm_up():
    found = []
    for i in range(WARM_UP):
        feed(i)
        found.append(step().item())
    return found
found = on_a_side_stream(warm_up)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for i in range(WARM_UP, STEPS):
    feed(i)
    graph.replay()
    found.append(loss.item())
assert found == expected, (found, expected)
assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), graphed.parameters()))
"""


@pytest.mark.parametrize("program", [COLLECTIVES, DATA_PARALLEL], ids=["collectives", "ddp"])
def test_collectives_in_a_graph(tmp_path, program):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS_BEGIN + program + RANKS_END)
    environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                       B200OPT_VNODE_SESSION=f"graph-{os.getpid()}")
    ranks = [subprocess.Popen([sys.executable, str(script)], env=dict(environment, RANK=str(r), LOCAL_RANK=str(r)),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(2)]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (process, output) in enumerate(zip(ranks, outputs)):
        assert process.returncode == 0 and f"rank {rank} done, 0 races" in output, output[-3000:]


def teardown_module():
    """No race was reported in the late orders (conftest has no hook for it)."""
    if os.environ.get("B200OPT_VNODE_ORDER", "eager") != "eager":
        node = ctypes.CDLL("libb200vnode.so")
        node.vnode_race_count.restype = ctypes.c_uint64
        assert node.vnode_race_count() == 0
