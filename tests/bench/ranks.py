# SPDX-License-Identifier: Apache-2.0
"""Merging the logs of many ranks: time and memory of `b200opt report`, and what the scanner of lines saves.

    ranks.py COMMAND [RANKS]     128 ranks by default; 1024 take 1.1 GB of disk and some minutes to write
"""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "report_overlap"))
from generate import write_many  # noqa: E402

MEMORY_MAX = 4 << 30


def report(command, folder):
    """→ processor and elapsed seconds, and bytes of memory at most, of reading the folder."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with open(os.devnull, "w") as nowhere:
        subprocess.run([command, "report", folder], check=True, stdout=nowhere)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin, after.ru_maxrss * 1024


def with_blanks(folder, other, count):
    """Some of the logs with a blank at the end of each line, which the scanner leaves to jansson."""
    for name in sorted(os.listdir(folder))[:count]:
        shutil.copy(os.path.join(folder, name), os.path.join(other, "plain"))
        with open(os.path.join(folder, name)) as log, open(os.path.join(other, "blanks", name), "w") as out:
            out.writelines(line[:-1] + " \n" for line in log)


def main():
    command, ranks = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 128
    folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
    try:
        size = write_many(os.path.join(folder, "logs"), ranks, 1000)
        busy, elapsed, memory = report(command, os.path.join(folder, "logs"))
        print(f"{ranks} logs of 1,000 steps and 2,000 operations, {size / ranks / 1e6:.2f} MB each: {elapsed:.1f} s "
              f"({busy:.1f} s of processor), {memory / 2**20:.0f} MiB")
        for part in ("plain", "blanks"):
            os.makedirs(os.path.join(folder, part))
        with_blanks(os.path.join(folder, "logs"), folder, 16)
        plain, _, _ = report(command, os.path.join(folder, "plain"))
        slow, _, _ = report(command, os.path.join(folder, "blanks"))
        print(f"the same 16 logs by jansson alone: {slow / plain:.1f} times the processor time of the scanner")
        if memory > MEMORY_MAX:
            sys.exit(f"more than {MEMORY_MAX >> 30} GiB of memory")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
