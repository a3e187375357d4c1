# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/traces: the device allocations of real trainings on the virtual node, and what PyTorch's allocator counted.

    python tests/replay/record.py --b200opt build/release/b200opt [NAME...]

Of the log of rank 0, NAME.jsonl.gz keeps every line that a replay reads (header, step, block, alloc, oom, retry, drop, end), whole and
in order, but for the machine's name and folders in the header; lines of other types are left out. NAME.json has memory_stats() at the job's end, the job's command and the device's memory.
"""
import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRACES = ROOT / "tests" / "data" / "traces"
KEPT = {"header", "step", "block", "alloc", "oom", "retry", "drop", "end"}
HF = ("tests/e2e/jobs/hf_trainer.py", "--fsdp-version", "2", "--seq", "384", "--batch", "8", "--vocabulary", "18432", "--dir", "{dir}/trainer", "--out",
      "{dir}/out.json")

# NAME: memory of the device in GiB (None: the GPU's own), and the client
JOBS = {
    # an ordinary FSDP2 training, with room to spare
    "fsdp2_ordinary": (None, ("tools/demo_job/train.py", "--mode", "fsdp2", "--steps", "12", "--width", "256", "--layers", "4", "--batch", "8", "--seq", "256")),
    # Hugging Face's Trainer with FSDP2 near the limit, which calls empty_cache after each step
    "fsdp2_near_limit": (2, (*HF, "--steps", "30", "--empty-cache-every", "1")),
    # the same with sequences of different lengths: cudaMalloc is refused, PyTorch gives back its cache and asks again
    "fsdp2_near_limit_lengths": (2, (*HF, "--steps", "24", "--empty-cache-every", "3", "--vary")),
}


def pack(name, folder):
    """From a folder with logs and stats.0.json."""
    memory_gib, command = JOBS[name]
    (log,) = [path for path in folder.glob("log/*/*-r0-*.jsonl")]
    lines = [line for line in log.read_text().splitlines(keepends=True) if json.loads(line)["t"] in KEPT]
    header = json.loads(lines[0])
    lines[0] = json.dumps({k: v for k, v in header.items() if k not in ("host", "config")}, separators=(",", ":")) + "\n"
    with gzip.GzipFile(TRACES / f"{name}.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(lines).encode())
    facts = {"command": " ".join(command), "memory_gib": memory_gib, "torch": json.loads((folder / "stats.0.json").read_text())}
    (TRACES / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def record(name, b200opt, folder):
    memory_gib, command = JOBS[name]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "PYTORCH_", "NCCL_"))}
    env |= {k: v for k, v in os.environ.items() if k == "B200OPT_VNODE_ATEN_DIR"} | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    limit = [f"B200OPT_VNODE_MEMORY_GB={memory_gib}"] if memory_gib else []
    words = [word.format(dir=folder) for word in command]
    subprocess.run([b200opt, "dryrun", "--gpus", "2", "--log", folder / "log", "B200OPT_MEMORY_TRACE=on", *limit, "--", sys.executable, "-B", "-m",
                    "torch.distributed.run", "--standalone", "--nproc-per-node", "2", HERE / "record_job.py", folder, ROOT / words[0], *words[1:]],
                   check=True, env=env, cwd=folder)
    pack(name, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--b200opt", type=pathlib.Path, default=ROOT / "build" / "release" / "b200opt")
    parser.add_argument("names", nargs="*", default=list(JOBS), metavar="NAME", help=", ".join(JOBS))
    arguments = parser.parse_args()
    for name in arguments.names:
        with tempfile.TemporaryDirectory() as folder:
            record(name, arguments.b200opt.resolve(), pathlib.Path(folder))


if __name__ == "__main__":
    main()
