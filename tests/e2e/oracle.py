# SPDX-License-Identifier: Apache-2.0
"""What one rank of tools/demo_job/train.py must do in one step, from the model's configuration alone.

Counts here come from arithmetic on the configuration, never from a run. Shapes are cuBLAS's column-major ones: for a linear layer
with `tokens` rows of input, fprop is D[out, tokens] = W·X, dgrad is D[in, tokens], wgrad is D[in, out]. Bytes follow nccl-tests:
all-gather and reduce-scatter count the whole gathered buffer, all-reduce its buffer.
"""
import collections
import dataclasses
import math

VOCAB = 256
HEAD_WIDTH = 32
SIZE = {"bf16": 2, "f32": 4}


@dataclasses.dataclass(frozen=True)
class Config:
    mode: str = "fsdp2"
    world: int = 2
    width: int = 128
    layers: int = 2
    seq: int = 128
    batch: int = 4
    accum: int = 1
    dtype: str = "bf16"
    norm: str = "layer"
    bias: bool = False
    ckpt: bool = False
    dropout: float = 0.0
    sdpa: str = "auto"

    @property
    def tokens(self):
        return self.batch * self.seq

    @property
    def parameter_type(self):
        return {"bf16": "bf16", "fp32": "f32"}[self.dtype]


def block_linears(config):
    """(in, out) of a block's linear layers, in forward order."""
    d = config.width
    return [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]


def parameter_shapes(config):
    """Shapes by FSDP unit: each block, then the rest of the model (the root unit)."""
    d = config.width

    def norm(kind):
        return [(d,)] * (2 if kind == "layer" else 1)

    block = norm(config.norm) * 2
    for fan_in, fan_out in block_linears(config):
        block.append((fan_out, fan_in))
        if config.bias:
            block.append((fan_out,))
    root = [(VOCAB, d), (config.seq, d), *norm("layer"), (VOCAB, d)]
    return [block] * config.layers + [root]


def elements(shapes):
    return sum(math.prod(shape) for shape in shapes)


def gemms(config):
    """{(role, m, n, k, batch): calls} of one step. Attention counts only with sdpa=math; the fused kernels are no GEMM calls."""
    calls = collections.Counter()
    tokens = config.tokens

    def forward(fan_in, fan_out):
        calls["fprop", fan_out, tokens, fan_in, 1] += config.accum

    def linear(fan_in, fan_out):
        forward(fan_in, fan_out)
        calls["dgrad", fan_in, tokens, fan_out, 1] += config.accum
        calls["wgrad", fan_in, fan_out, tokens, 1] += config.accum

    for _ in range(config.layers):
        for fan_in, fan_out in block_linears(config):
            linear(fan_in, fan_out)
        if config.ckpt:
            # Recomputation stops as soon as everything that backward needs is there: without a dropout after it, the last
            # layer's output is not needed.
            for fan_in, fan_out in block_linears(config)[: None if config.dropout else -1]:
                forward(fan_in, fan_out)
    linear(config.width, VOCAB)
    return calls


def attention_flops(config):
    """FLOPs of sdpa=math: two products forward, four backward, and once more forward with recomputation."""
    if config.sdpa != "math":
        return 0
    heads = config.width // HEAD_WIDTH
    product = 2 * config.seq * config.seq * HEAD_WIDTH * heads * config.batch
    return product * (2 + 4 + (2 if config.ckpt else 0)) * config.layers * config.accum


def gemm_flops(config):
    return sum(2 * m * n * k * batch * c for (_, m, n, k, batch), c in gemms(config).items()) + attention_flops(config)


def padded_elements(shapes, ranks):
    """FSDP2 splits each parameter along its first dimension, rounded up to a multiple of the ranks."""
    return sum(math.ceil(s[0] / ranks) * ranks * math.prod(s[1:]) for s in shapes)


def flat_elements(shapes, ranks):
    """FSDP1 joins a unit's parameters into one, rounded up to a multiple of the ranks."""
    return math.ceil(elements(shapes) / ranks) * ranks


def collectives(config):
    """{(op, dtype, nranks): [calls, bytes]} of one step in the modes that shard.

    A block is gathered for forward and again for backward; the root unit stays whole in between, so it is gathered once. Gradients are
    reduced in the last micro-batch only. Then come the gradient norm and the loss.
    """
    count = collections.defaultdict(lambda: [0, 0])

    def add(op, dtype, ranks, size, calls=1):
        count[op, dtype, ranks][0] += calls
        count[op, dtype, ranks][1] += calls * size * SIZE[dtype]

    *blocks, root = parameter_shapes(config)
    shards = config.world // 2 if config.mode == "hsdp" else config.world
    size_of = flat_elements if config.mode == "fsdp1" else padded_elements
    for unit, gathers in [(u, 2) for u in blocks] + [(root, 1)]:
        size = size_of(unit, shards)
        add("AllGather", config.parameter_type, shards, size, gathers * config.accum)
        add("ReduceScatter", "f32", shards, size)
        if config.mode == "hsdp":
            add("AllReduce", "f32", 2, size // shards)
    # FSDP1 reduces the gradients' norm, FSDP2 the norms of all parameters.
    add("AllReduce", "f32", shards, 1 if config.mode == "fsdp1" else sum(len(unit) for unit in [*blocks, root]))
    add("AllReduce", "f32", config.world, 1)
    return {key: tuple(value) for key, value in count.items()}


def ddp_reduced_bytes(config):
    """DDP reduces every gradient once a step, in fp32; into how many buckets is its own affair. Plus the loss."""
    return (sum(elements(unit) for unit in parameter_shapes(config)) + 1) * SIZE["f32"]
