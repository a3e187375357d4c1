# SPDX-License-Identifier: Apache-2.0
"""usage: generate.py OUT [--ranks 2] [--steps 50] [--layers 80] [--seed 1] [--gz] [--comm-scale X] [--straggler RANK:FACTOR]
                          [--no-steps] [--no-comm] [--epoch] [--odd] [--not-json]

Writes traces as PyTorch's profiler (Kineto) does for an FSDP job, OUT/rank_N.json, and OUT.truth.json with the exact nanoseconds.

A step has for each layer three collectives on stream 20 (gather forward and backward, reduce-scatter) and twelve GEMMs with ten
other kernels on stream 7, then an optimizer that waits for all of them. Compute of a layer waits for its gather, which is
issued when the layer before starts; collectives are in order, and end together on all ranks.

  --epoch     timestamps since 1970 instead of since baseTimeNanoseconds, as before 2024: too long for a double's nanoseconds
  --odd       also what is no work of the GPU, or cannot be used: waits with a stream, categories that nobody knows, kernels without
              a duration or with an impossible one; a kernel launched twice, names that look like something else, arguments before
              the category
  --not-json  also what Kineto has written and is no JSON, and elements that are no events
"""
import argparse
import gzip
import json
import os
import random

GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_TNT"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16> >"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdam>"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_allgather_base"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_reduce_scatter_base"
GEMM_NS = (310_000, 420_000, 880_000, 450_000)  # qkv, o, gate and up, down
BASE_NS = 1_760_000_000_000_000_000
START_NS = 3_000_000_000_000  # of the first event after the base


class Job:
    """The ranks' operations: (start, end, name, stream, class, collective) in nanoseconds, class one of comm, comp, mem."""

    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.ops = [[] for _ in range(options.ranks)]
        self.steps = [[] for _ in range(options.ranks)]
        self.compute_end, self.comm_end = [0] * options.ranks, 0
        self.slow_rank, self.slow = -1, 1.0
        if options.straggler:
            rank, factor = options.straggler.split(":")
            self.slow_rank, self.slow = int(rank), float(factor)

    def kernel(self, rank, name, ns, kind="comp"):
        start = self.compute_end[rank] + self.random.randrange(700, 2500)
        self.compute_end[rank] = start + max(1000, int(ns))
        self.ops[rank].append((start, self.compute_end[rank], name, 7, kind, None))

    def collective(self, what, ready, ns):
        """When the last rank is done. `ready`: when each rank may start."""
        if self.options.no_comm:
            return max(ready)
        starts = [max(self.comm_end, at) + self.random.randrange(1500, 6000) for at in ready]
        end = max(starts) + max(5000, int(ns * self.options.comm_scale * self.random.lognormvariate(0, 0.12)))
        for rank, start in enumerate(starts):
            self.ops[rank].append((start, end + self.random.randrange(1500), what[0], 20, "comm", what[1]))
        self.comm_end = end + 1500
        return end

    def layer(self, gathered, gather_next, gemms, elementwise_ns):
        self.compute_end = [max(at, gathered) for at in self.compute_end]
        following = self.collective(GATHER, self.compute_end, 900e3) if gather_next else gathered
        for rank in range(self.options.ranks):
            slow = self.slow if rank == self.slow_rank else 1.0
            for i in range(gemms):
                self.kernel(rank, GEMM, GEMM_NS[i % 4] * self.random.gauss(1, 0.03) * slow)
                if i % 2 == 0 or gemms == 4 and i != 1:
                    self.kernel(rank, ELEMENTWISE, elementwise_ns * self.random.gauss(1, 0.05) * slow)
        return following

    def step(self):
        layers, begin = self.options.layers, list(self.compute_end)
        gathered = self.collective(GATHER, self.compute_end, 900e3)
        for i in range(layers):
            gathered = self.layer(gathered, i + 1 < layers, 4, 45e3)
        for rank in range(self.options.ranks):
            for _ in range(3):
                self.kernel(rank, GEMM, 2.4e6 * self.random.gauss(1, 0.03))
        gathered = self.collective(GATHER, self.compute_end, 900e3)
        for i in range(layers):
            gathered = self.layer(gathered, i + 1 < layers - 1, 8, 60e3)
            self.collective(REDUCE, self.compute_end, 1100e3)
        self.compute_end = [max(at, self.comm_end) for at in self.compute_end]
        for rank in range(self.options.ranks):
            self.kernel(rank, "Memcpy HtoD (Pinned -> Device)", 20e3, "mem")
            for _ in range(6):
                self.kernel(rank, ADAM, 900e3 * self.random.gauss(1, 0.03))
            self.kernel(rank, "Memset (Device)", 8e3, "mem")
            self.steps[rank].append((begin[rank], self.compute_end[rank]))


# ---- truth


def union(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def total(intervals):
    return sum(end - start for start, end in intervals)


def both(a, b):
    """Length of the intersection of two unions."""
    i = j = length = 0
    while i < len(a) and j < len(b):
        length += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return length


def truth_of(ops):
    by_class = {kind: union((op[0], op[1]) for op in ops if op[4] == kind) for kind in ("comm", "comp", "mem")}
    busy = union((op[0], op[1]) for op in ops)
    span = busy[-1][1] - busy[0][0] if busy else 0
    overlapped = both(by_class["comm"], by_class["comp"])
    return {"span": span, "busy": total(busy), "idle": span - total(busy), "compute": total(by_class["comp"]),
            "communication": total(by_class["comm"]), "memory": total(by_class["mem"]), "overlapped": overlapped,
            "uncovered": total(by_class["comm"]) - overlapped}


# ---- writing


def us(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


def event(category, name, pid, tid, start, duration, arguments):
    dur = "" if duration is None else f'"dur":{us(duration) if isinstance(duration, int) else duration},'
    return f'{{"ph":"X","cat":"{category}","name":"{name}","pid":{pid},"tid":{tid},"ts":{us(start)},{dur}"args":{{{arguments}}}}}'


def operation(job, rank, correlation, op, offset):
    start, end, name, stream, kind, collective = op
    category = "kernel" if kind != "mem" else "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset"
    ranks, elements = job.options.ranks, 107_000_000 // job.options.ranks
    extra = ""
    if collective:
        inside, outside = (elements, elements * ranks) if "gather" in collective else (elements * ranks, elements)
        extra = (f',"Collective name":"{collective}","In msg nelems":{inside},"Out msg nelems":{outside},"Group size":{ranks},'
                 '"dtype":"BFloat16","Process Group Name":"0"')
    return event(category, name, rank, stream, start + offset, end - start,
                 f'"External id":{correlation},"device":{rank},"context":1,"stream":{stream},"correlation":{correlation},"queued":0,'
                 '"registers per thread":64,"shared memory":0,"blocks per SM":1.0,"warps per SM":8.0,"grid":[148,1,1],'
                 f'"block":[256,1,1],"est. achieved occupancy %":50{extra}')


def odd_events(rank, pid, middle):
    """What must not change a figure; around `middle`, in the middle of the trace."""
    for correlation in range(900001, 900006):
        yield event("cuda_runtime", "cudaStreamWaitEvent", pid, pid, middle - 100_000, 1000, f'"correlation":{correlation}')
    yield event("cuda_sync", "Stream Wait Event", rank, 7, middle, 5_000_000, '"stream":7,"correlation":900001,"wait_on_stream":20')
    yield event("cuda_sync", "Event Sync", rank, -1, middle, 5_000_000, '"stream":-1,"correlation":900002')
    yield event("somebody's", "new kind of event", rank, 7, middle, 7_000_000, '"stream":7,"correlation":900003')
    yield event("gpu_user_annotation", "ProfilerStep#0", rank, 7, middle, 9_000_000, '"External id":1')
    yield event("kernel", GEMM, rank, 7, middle, None, '"stream":7,"correlation":900004')
    yield event("kernel", GEMM, rank, 7, middle, "-3.000", '"stream":7,"correlation":900005')
    yield '{"name":"process_name","ph":"M","ts":1.5,"pid":1,"tid":0,"args":{"name":"python"}}'
    yield f'{{"ph":"s","id":5,"pid":1,"tid":1,"ts":{us(middle)},"cat":"ac2g","name":"ac2g"}}'
    yield f'{{"ph":"i","cat":"overhead","s":"t","name":"Record Window End","pid":"","tid":"","ts":{us(middle)}}}'


def events_not_json(rank, pid, middle):
    """The same, beyond JSON or beyond what events are."""
    yield event("kernel", GEMM, rank, 7, middle, "1e300", '"stream":7,"correlation":900006')
    yield event("kernel", GEMM, rank, 7, middle, '"7"', '"stream":7,"correlation":900007')
    yield event("cpu_op", "aten::\\N \\u12 \x01\t path", pid, pid, middle, 1000, '"Concrete Inputs":["\\"}]"," [[{\\\\"],"memory bandwidth (GB/s)":inf,"x":N/A,"y":NaN')
    yield "[1,2,[3]],null,17,\"text\""


def odd_ops(last):
    """Operations that do count, and are easily taken for something else."""
    return [(last + 1000, last + 51_000, "void nccl_like::copy_MemcpySync_kernel()", 7, "comp", None),
            (last + 20_000, last + 81_000, "void two_shot_all_reduce_kernel<8>(float)", 21, "comm", None),
            (last + 90_000, last + 90_000, GEMM, 7, "comp", None)]


def write(job, rank, options):
    pid, name = 1000 + rank, f"{options.out}/rank_{rank}.json{'.gz' if options.gz else ''}"
    offset = START_NS + (BASE_NS if options.epoch else 0)
    ops = job.ops[rank]
    begin = max(at for at, *_ in ops) if ops else 0
    lines = [event("user_annotation", f"ProfilerStep#{k}", pid, pid, start + offset, end - start, f'"External id":{k + 1},"Ev Idx":{k}')
             for k, (start, end) in enumerate(job.steps[rank]) if not options.no_steps]
    at, launches = 0, []
    for correlation, op in enumerate(ops, 1):
        at = max(at + 6000, op[0] - 30_000_000)
        at = max(0, min(at, op[0] - 2000))
        launches.append(at)
        lines.append(operation(job, rank, correlation, op, offset))
        call = "cudaMemcpyAsync" if op[4] == "mem" else "cudaLaunchKernel"
        lines.append(event("cuda_runtime", call, pid, pid, at + offset, 4000, f'"External id":{correlation},"cbid":211,"correlation":{correlation}'))
    if options.not_json:
        lines[len(lines) // 3:len(lines) // 3] = events_not_json(rank, pid, begin // 3 + offset)
    if options.odd:
        lines[len(lines) // 2:len(lines) // 2] = odd_events(rank, pid, begin // 2 + offset)
        lines.append(event("cuda_driver", "cuLaunchKernel", pid, pid, job.compute_end[rank] + 9000 + offset, 1000, f'"correlation":{len(ops)}'))
        last = lines.pop(next(i for i, text in enumerate(lines) if '"cat":"kernel"' in text))  # its category behind its arguments
        front, arguments = last.split('"args":')
        lines.append('{"args":' + arguments[:-1] + "," + front[1:].rstrip(",") + "}")
    lines.append(f'{{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler","ts":{us(offset)},'
                 f'"dur":{us(job.compute_end[rank])},"args":{{"Op count":0}}}}')
    head = {"schemaVersion": 1, "deviceProperties": [{"id": rank, "name": "synthetic", "numSms": 148}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": options.ranks},
            "baseTimeNanoseconds": 0 if options.epoch else BASE_NS, "displayTimeUnit": "ms"}
    with gzip.open(name, "wt", compresslevel=1) if options.gz else open(name, "w") as out:
        out.write(json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + f'\n], "traceName": "{name}"}}\n')
    return launches


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("out")
    for flag, value in (("--ranks", 2), ("--steps", 50), ("--layers", 80), ("--seed", 1)):
        parser.add_argument(flag, type=int, default=value)
    parser.add_argument("--comm-scale", type=float, default=1.0)
    parser.add_argument("--straggler", default="")
    for flag in ("--gz", "--no-steps", "--no-comm", "--epoch", "--odd", "--not-json"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    job = Job(options)
    for _ in range(options.steps):
        job.step()
    truth = {}
    for rank in range(options.ranks):
        if options.odd:
            job.ops[rank] += odd_ops(job.compute_end[rank])
        ops, steps = job.ops[rank], job.steps[rank]
        launches = write(job, rank, options)
        row = {"all": truth_of(ops), "operations": len(ops)}
        if not options.no_steps:
            row["without_last_step"] = truth_of([op for op, at in zip(ops, launches) if at < steps[-1][0]])
            row["steps"] = [truth_of([op for op, at in zip(ops, launches) if start <= at < end]) for start, end in steps]
        truth[rank] = row
    with open(options.out.rstrip("/") + ".truth.json", "w") as out:
        json.dump(truth, out, indent=1)


if __name__ == "__main__":
    main()
