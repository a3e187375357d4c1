# SPDX-License-Identifier: Apache-2.0
"""Lets PyTorch's own caching allocator serve a log of RMM, on a virtual node or a GPU, and prints what it counted as JSON.

    PYTORCH_ALLOC_CONF=expandable_segments:True python ask_torch.py FILE

A refused request is left out, as in a replay; `limit` is what the device had free at first.
"""
import json
import sys

import torch


def main(path):
    limit = torch.cuda.mem_get_info()[0]
    live, streams, failures = {}, {}, 0
    with open(path) as lines:
        next(lines)
        for line in lines:
            _, _, action, pointer, size, stream = line.rstrip("\n").split(",")
            key = int(stream, 0)
            if key and key not in streams:
                streams[key] = torch.cuda.Stream()
            if action == "allocate":
                try:
                    handle = streams[key].cuda_stream if key else 0
                    live[pointer] = torch._C._cuda_cudaCachingAllocator_raw_alloc(int(size), handle)
                except torch.cuda.OutOfMemoryError:
                    failures += 1
            elif pointer in live:
                torch._C._cuda_cudaCachingAllocator_raw_delete(live.pop(pointer))
    stats = torch.cuda.memory_stats()
    print(json.dumps({
        "peak_reserved": stats["reserved_bytes.all.peak"], "reserved": stats["reserved_bytes.all.current"],
        "live": stats["requested_bytes.all.current"], "peak_live": stats["requested_bytes.all.peak"],
        "segments": stats["segment.all.allocated"], "segments_freed": stats["segment.all.freed"],
        "device_allocs": stats["num_device_alloc"], "device_frees": stats["num_device_free"],
        "retries": stats["num_alloc_retries"], "failures": failures, "limit": limit,
    }))


main(sys.argv[1])
