# SPDX-License-Identifier: Apache-2.0
"""Runs a training script and writes what PyTorch's allocator counted at its end to FOLDER/stats.RANK.json.

    torchrun ... record_job.py FOLDER train.py --mode fsdp2
"""
import json
import os
import pathlib
import runpy
import sys

import torch
import torch.distributed as dist

KEYS = ("reserved_bytes.all.peak", "reserved_bytes.all.current", "allocated_bytes.all.peak", "segment.all.allocated", "segment.all.freed",
        "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def main():
    folder, *command = sys.argv[1:]
    destroy = dist.destroy_process_group

    def last_words(*arguments, **options):
        stats = torch.cuda.memory_stats()
        pathlib.Path(folder, f"stats.{os.environ['RANK']}.json").write_text(json.dumps({key: stats[key] for key in KEYS}))
        destroy(*arguments, **options)

    dist.destroy_process_group = last_words
    sys.argv = command
    sys.path[0] = str(pathlib.Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


main()
