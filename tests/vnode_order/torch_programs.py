# SPDX-License-Identifier: Apache-2.0
"""Mistakes that PyTorch programs make with streams, each beside its right version, which differs by one line.

A program is a function of `wrong`; it returns whether the numbers that it computed are right. PROGRAMS says what the race
checker has to say of the wrong one. As a command it runs all of them or those named, both versions, in the order that the environment names,
and prints as JSON what came out: [name, wrong, exit statuses, what the node said]. Each runs in a fork of a process that has
PyTorch but has not used a GPU.
"""
import collections
import json
import os
import signal
import sys
import tempfile

import torch
import torch.distributed as dist

N = 1 << 14
RIGHT, WRONG, FAILED = range(3)

# kind None: the checker cannot know, the host only reads. shows: wrong numbers in some late order.
Program = collections.namedtuple("Program", "run kind newer older shows ranks", defaults=(True, 1))


def all_are(tensor, value):
    torch.cuda.synchronize()
    return bool((tensor.cpu() == value).all())


def side_stream_reads(wrong):
    x, side = torch.zeros(N, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    x.fill_(1)
    if not wrong:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    return all_are(y, 2)


def event_recorded_before_the_work(wrong):
    x, side, done = torch.zeros(N, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    if wrong:
        done.record()
    x.fill_(1)
    if not wrong:
        done.record()
    side.wait_event(done)
    with torch.cuda.stream(side):
        y = x + 1
    return all_are(y, 2)


def no_record_stream(wrong):
    """The caching allocator hands out a block again as soon as the stream that it was made on allows."""
    x, side = torch.ones(N, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 3
    if not wrong:
        x.record_stream(side)
    address = x.data_ptr()
    del x
    z = torch.empty(N, device="cuda").fill_(7)
    assert z.data_ptr() == address or not wrong
    return all_are(y, 3)


def pinned_batch_overwritten(wrong):
    batch = torch.ones(N).pin_memory()
    x = batch.to("cuda", non_blocking=True)
    if not wrong:
        torch.cuda.synchronize()
    batch.fill_(2)
    return all_are(x, 1)


def result_read_too_soon(wrong):
    x = torch.full((N,), 3.0, device="cuda")
    host = torch.zeros(N).pin_memory()
    host.copy_(x, non_blocking=True)
    if not wrong:
        torch.cuda.synchronize()
    return bool((host == 3).all())


def gradients_read_on_another_stream(wrong):
    weight, side = torch.ones(N, device="cuda", requires_grad=True), torch.cuda.Stream()
    x = torch.full((N,), 2.0, device="cuda")
    torch.cuda.synchronize()
    (weight * x).sum().backward()
    if not wrong:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scaled = weight.grad / 2
    return all_are(scaled, 1)


class Prefetcher:
    """Uploads the next batch on a stream of its own."""

    def __init__(self, batches, wrong):
        self.batches, self.wrong, self.side = iter(batches), wrong, torch.cuda.Stream()
        self.load()

    def load(self):
        batch = next(self.batches, None)
        with torch.cuda.stream(self.side):
            self.batch = None if batch is None else batch.to("cuda", non_blocking=True)

    def next(self):
        if not self.wrong:
            torch.cuda.current_stream().wait_stream(self.side)
        batch = self.batch
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
            self.load()
        return batch


def prefetcher_does_not_wait(wrong):
    prefetcher = Prefetcher([torch.full((N,), float(i)).pin_memory() for i in range(1, 5)], wrong)
    total, batch = torch.zeros(N, device="cuda"), prefetcher.next()
    while batch is not None:
        total += batch
        batch = prefetcher.next()
    return all_are(total, 10)


def collective_not_waited_for(wrong):
    x = torch.full((N,), float(dist.get_rank() + 1), device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    work = dist.all_reduce(x, async_op=True)
    if not wrong:
        work.wait()
    y = x + 1
    good = all_are(y, 7)
    work.wait()
    return good


def bucket_reused_before_the_collective_read_it(wrong):
    x = torch.full((N,), float(dist.get_rank() + 1), device="cuda")
    out = torch.zeros(2 * N, device="cuda")
    torch.cuda.synchronize()
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    if not wrong:
        work.wait()
    x.zero_()
    work.wait()
    return all_are(out[:N], 1) and all_are(out[N:], 2)


READ, OVERWRITE = "read after unordered write", "write after unordered read"
PROGRAMS = {
    "side stream reads": Program(side_stream_reads, READ, "mul", "fill_"),
    "event recorded before the work": Program(event_recorded_before_the_work, READ, "add", "fill_"),
    "no record_stream": Program(no_record_stream, OVERWRITE, "fill_", "mul"),
    "pinned batch overwritten": Program(pinned_batch_overwritten, "host memory changed", "copy", ""),
    "result read too soon": Program(result_read_too_soon, None, "", ""),
    "gradients read on another stream": Program(gradients_read_on_another_stream, READ, "div", ""),
    "prefetcher does not wait": Program(prefetcher_does_not_wait, READ, "add", "copy"),
    "collective not waited for": Program(collective_not_waited_for, READ, "add", "AllReduce", ranks=2),
    "bucket reused": Program(bucket_reused_before_the_collective_read_it, OVERWRITE, "zero_", "AllGather", ranks=2),
}


def run_rank(program, wrong, rank, folder):
    signal.alarm(120)
    if program.ranks > 1:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", store=dist.FileStore(f"{folder}/store", program.ranks), rank=rank,
                                world_size=program.ranks, device_id=torch.device("cuda", rank))
    right = program.run(wrong)
    if program.ranks > 1:
        dist.destroy_process_group()
    return RIGHT if right else WRONG


def start(program, wrong, rank, folder):
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        os.dup2(os.open(f"{folder}/stderr{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        status = run_rank(program, wrong, rank, folder)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def run(name, wrong):
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        pids = [start(program, wrong, rank, folder) for rank in range(program.ranks)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        said = "".join(open(f"{folder}/stderr{rank}").read() for rank in range(program.ranks))
    return name, wrong, statuses, said


if __name__ == "__main__":
    print(json.dumps([run(name, wrong) for name in sys.argv[1:] or PROGRAMS for wrong in (False, True)]))
