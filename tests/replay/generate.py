# SPDX-License-Identifier: Apache-2.0
"""A seeded stream of the device allocations of an FSDP training step, as events that either format of `b200opt replay` holds.

Tensors: sharded parameters stay; an all-gather stream has the full parameters of two layers in flight; activations grow and
shrink like a stack; gradients are reduced and scattered on a stream of their own; optimizer state appears in the first step;
logits are a spike; the sequence length varies from step to step; a checkpoint gathers every layer at the end.

    python generate.py --seed 1 --events 1000000 >stream.csv
"""
import argparse
import random
import sys

MIB = 1 << 20
HEADER = "Thread,Time,Action,Pointer,Size,Stream"
COMPUTE, GATHER, REDUCE = 0, 0x55d0c0de1000, 0x55d0c0de2000


class Stream:
    """Events (action, pointer, bytes, stream) with addresses as a driver hands them out: never one that is live."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.events = []
        self.live = {}
        self.next_address = 0x7f0000000000
        self.freed = []

    def alloc(self, size, stream=COMPUTE):
        reuse = [i for i, (_, bytes_) in enumerate(self.freed[-8:], max(0, len(self.freed) - 8)) if bytes_ == size]
        if reuse:
            pointer = self.freed.pop(reuse[-1])[0]
        else:
            pointer = self.next_address
            self.next_address += (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
        self.live[pointer] = (size, stream)
        self.events.append(("allocate", pointer, size, stream))
        return pointer

    def free(self, pointer):
        size, stream = self.live.pop(pointer)
        self.freed.append((pointer, size))
        del self.freed[:-64]
        self.events.append(("free", pointer, size, stream))


class Job:
    def __init__(self, stream, layers=24, width=2048, world=8, vocabulary=32000):
        self.stream, self.layers, self.width, self.world, self.vocabulary = stream, layers, width, world, vocabulary
        self.layer_bytes = 12 * width * width * 2  # bf16
        self.shards = [stream.alloc(self.layer_bytes // world * 2) for _ in range(layers)]  # fp32 masters
        self.optimizer = []

    def tokens(self):
        return self.stream.random.randrange(512, 4097, 8)

    def forward(self, tokens, gathered):
        activations = []
        for _ in range(self.layers):
            gathered.append(self.stream.alloc(self.layer_bytes, GATHER))
            if len(gathered) > 2:
                self.stream.free(gathered.pop(0))
            kept = [self.stream.alloc(tokens * self.width * factor) for factor in (2, 8, 6)]
            for size in (tokens * 4, tokens * self.width * 2):
                self.stream.free(self.stream.alloc(size))
            activations.append(kept)
        return activations

    def backward(self, tokens, gathered, activations):
        for kept in reversed(activations):
            gathered.append(self.stream.alloc(self.layer_bytes, GATHER))
            if len(gathered) > 2:
                self.stream.free(gathered.pop(0))
            gradient = self.stream.alloc(self.layer_bytes)
            self.stream.free(self.stream.alloc(tokens * self.width * 2))
            for pointer in reversed(kept):
                self.stream.free(pointer)
            reduced = self.stream.alloc(self.layer_bytes // self.world, REDUCE)
            self.stream.free(gradient)
            yield reduced

    def step(self):
        tokens, gathered = self.tokens(), []
        activations = self.forward(tokens, gathered)
        logits = [self.stream.alloc(tokens * self.vocabulary * factor) for factor in (2, 4, 4)]
        for pointer in logits:
            self.stream.free(pointer)
        reduced = list(self.backward(tokens, gathered, activations))
        for pointer in gathered:
            self.stream.free(pointer)
        if not self.optimizer:
            self.optimizer = [self.stream.alloc(self.layer_bytes // self.world * 2) for _ in range(2 * self.layers)]
        for pointer in reduced:
            self.stream.free(pointer)

    def checkpoint(self):
        whole = [self.stream.alloc(self.layer_bytes * 2, GATHER) for _ in range(self.layers // 2)]
        for pointer in whole:
            self.stream.free(pointer)


def events(seed, count=0, steps=4, **shape):
    """Of so many steps, or of as many as it takes for `count` events, which are then cut there; and a checkpoint after each 50."""
    stream = Stream(seed)
    job = Job(stream, **shape)
    step = 0
    while step < steps or len(stream.events) < count:
        job.step()
        step += 1
        if step % 50 == 0 or step == steps:
            job.checkpoint()
    return stream.events[:count] if count else stream.events


def csv_lines(listed, thread=4242):
    yield HEADER
    for i, (action, pointer, size, stream) in enumerate(listed):
        seconds, microseconds = divmod(i * 17, 1000000)
        clock = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{microseconds:06}"
        yield f"{thread},{clock},{action},{'(nil)' if not pointer else hex(pointer)},{size},{hex(stream) if stream else 0}"


def csv_text(listed, thread=4242):
    return "".join(line + "\n" for line in csv_lines(listed, thread))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    for line in csv_lines(events(arguments.seed, arguments.events, arguments.steps)):
        sys.stdout.write(line + "\n")
