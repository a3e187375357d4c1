# SPDX-License-Identifier: Apache-2.0
"""Comparing two arms of 8 ranks and 100,000 steps each: time and memory of reading them, and of the whole comparison.

    compare.py DUMP_ARM COMMAND [STEPS [RANKS]]     DUMP_ARM reads one arm, COMMAND is b200opt; "-" leaves one out
    compare.py --write FOLDER [STEPS [RANKS]]       only writes an arm
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HEADER = ('{{"t":"header","format":1,"producer":"b200opt 0.1.0","run":"bench","arm":"{arm}","host":"node-a","pid":{pid},'
          '"rank":{rank},"world":{ranks},"local_rank":{rank},"t_ns":1000000000,"unix_ns":1700000001000000000,'
          '"versions":{{"driver":13020,"cudart":13020,"nccl":23007,"cublaslt":130401}},"gpu":"NVIDIA B200","config":{{}},'
          '"nccl_env":{{}}}}\n{{"t":"timing","mode":"on","every":16,"why":"default","clock":"host","clock_ns":500}}\n')
STEP = ('{"t":"step","gen":1,"step":%d,"source":"coll","period":96,"t_ns":%d,"dur_ns":%d,"gemm_calls":1344,'
        '"gemm_flops":5912345600003008,"coll_calls":96,"coll_bytes":26184856000,"alloc_calls":0,'
        '"hbm":{"pytorch":155189248000,"nccl":505413632},"hbm_used":158974848000}\n')
TIME = ('{"t":"time","gen":1,"step":%d,"t_ns":%d,"dev_ns":%d,"colls":96,"comm_ns":555071000,"busy_ns":%d,"blocked_ns":%d,'
        '"queued_ns":0,"gemms":0,"gemm_ns":-1,"uncovered_ns":-1,"host_ns":-1,"start_ns":-1,"starved":-1}\n')
LOSS = '{"t":"loss","step":%d,"loss":%.17g,"tokens_per_s":149400,"t_ns":%d,"grad_norm":%.17g}\n'


def write_arm(folder, arm, steps, ranks, factor=1.0):
    """→ bytes written."""
    os.makedirs(os.path.join(folder, "bench"))
    size = 0
    for rank in range(ranks):
        rng = random.Random(rank)
        at, lines = 1_000_000_000, [HEADER.format(arm=arm, pid=1000 + rank, rank=rank, ranks=ranks)]
        for step in range(steps):
            dur = int(factor * (600_000_000 + rng.randrange(20_000_000)))
            lines.append(STEP % (step, at, dur))
            lines.append(TIME % (step, at + 500, dur - 1000, dur // 4, dur // 9))
            at += dur
            if rank == 0:
                loss = round(2 + 8 / (1 + step / 200) + rng.gauss(0, 0.02), 4)
                lines.append(LOSS % (step + 1, loss, at, round(0.5 + rng.random(), 4)))
        lines.append('{"t":"end","t_ns":%d}\n' % at)
        text = "".join(lines)
        size += len(text)
        with open(os.path.join(folder, "bench", f"node-a-r{rank}-{1000 + rank}.jsonl"), "w") as log:
            log.write(text)
    return size


def measure(what, command, accepted):
    """Prints elapsed and processor seconds, and the most memory, of one command."""
    begin = time.monotonic()
    with open(os.devnull, "w") as nowhere:
        child = subprocess.Popen(command, stdout=nowhere)
        _, status, used = os.wait4(child.pid, 0)
    elapsed, status = time.monotonic() - begin, os.waitstatus_to_exitcode(status)
    child.returncode = status
    if status not in accepted:
        sys.exit(f"{command[0]}: exit status {status}")
    print(f"{what}: {elapsed:.2f} s ({used.ru_utime + used.ru_stime:.2f} s of processor), {used.ru_maxrss / 1024:.0f} MiB")


def main():
    numbers = [int(n) for n in sys.argv[3:]] + [100_000, 8][len(sys.argv) - 3:]
    if sys.argv[1] == "--write":
        print(write_arm(sys.argv[2], "a" if sys.argv[2].endswith("a") else "b", *numbers,
                        factor=1.0 if sys.argv[2].endswith("a") else 0.9))
        return
    dump, command = sys.argv[1:3]
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    try:
        size = 0
        for arm in ("a", "b"):  # by another process: the memory of this one would count as that of its children
            write = [sys.executable, __file__, "--write", os.path.join(folder, arm)] + [str(n) for n in numbers]
            size += int(subprocess.run(write, check=True, capture_output=True, text=True).stdout)
        print(f"two arms of {numbers[1]} ranks and {numbers[0]} steps, {size / 1e6:.0f} MB")
        if dump != "-":
            measure("reading one arm", [dump, os.path.join(folder, "a"), "--quiet"], (0,))
        if command != "-":
            measure("comparing both", [command, "compare", os.path.join(folder, "a"), os.path.join(folder, "b")], range(5))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
