# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job and only watches: no rank is stopped because another died, as a launcher's agent would.

    python start_ranks.py WORLD LIMIT_S SCRIPT [ARGUMENT...]

Prints `rank R ended with S` for each, negative S for a signal, and `rank R still runs` for one that outlives the first death by LIMIT_S
(which is then killed).
"""
import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(world, limit_s, command):
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen([sys.executable, *command], env={**os.environ, **shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(world)
    ]
    while all(p.poll() is None for p in ranks):
        time.sleep(0.05)
    deadline = time.monotonic() + limit_s
    for rank, process in enumerate(ranks):
        try:
            status = process.wait(max(0, deadline - time.monotonic()))
            print(f"rank {rank} ended with {status}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"rank {rank} still runs", flush=True)
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
