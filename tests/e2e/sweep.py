# SPDX-License-Identifier: Apache-2.0
"""Every client of the matrix in eager, deferred and many seeds of adversarial order: bit-identical losses and gradient norms and no race. Two eager and two deferred runs take the same modelled time; in adversarial order PyTorch's allocator hears at other
times that a block is free, and may ask the driver more or less often.

    b200opt dryrun --gpus 4 --log DIR -- python tests/e2e/sweep.py [--seeds 20] [--only CLIENT] [--precision fp8] [--brief]

With --precision every GEMM that can be is converted, and of those of 16-bit types at least 80 % of the FLOPs must be.

PyTorch and the trainers are imported once; each run is forked from that process before it has touched CUDA, which saves most of a
run's time.
"""
import argparse
import collections
import contextlib
import importlib
import json
import os
import pathlib
import runpy
import socket
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools" / "demo_job")]
from conftest import PRECISIONS  # noqa: E402
from matrix import CLIENTS, FP32_ACCUM, LOADER_PLAIN, LOADERS  # noqa: E402

LEAST_CONVERTED = 0.8
# Calls whose types are no affair of FP8: FP32 GEMMs, and those that another library made narrow.
NOT_ELIGIBLE = ("fp32", "dtype", "api", "already_narrow")

# Not torchtitan: importing it asks for the number of GPUs, which the virtual node answers by what the environment says then.
IMPORTS = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.utils.data", "transformers.trainer", "accelerate")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_main(command, world, rank, order, seed, folder, port, before):
    """Runs in a forked child. before(folder, rank) comes before the job."""
    with open(folder / f"output.{rank}", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), B200OPT_VNODE_ORDER=order, B200OPT_VNODE_SEED=str(seed), B200OPT_VNODE_SESSION=f"{os.getppid()}-{folder.name}",
        B200OPT_VNODE_LOG_DIR=str(folder), B200OPT_LOG_DIR=str(folder / "shim"),
    )
    if before:
        before(folder, rank)
    if command[0] == "-m":
        sys.argv = ["", *command[2:]]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def converted(folder, precision):
    """Share of the eligible GEMM FLOPs that were done in the format, from the library's logs of all ranks."""
    done = collections.Counter()
    for path in folder.glob("shim/**/*.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            if record["t"] == "gemm" and record["reason"] not in NOT_ELIGIBLE:
                done[record["plan"] == precision if precision != "auto" else record["plan"] != "native", record["reason"]] += record["flops"]
    assert done, "no GEMM was logged"
    share = sum(flops for (narrow, _), flops in done.items() if narrow) / sum(done.values())
    assert share >= LEAST_CONVERTED, f"{100 * share:.0f} % converted: {dict(done)}"
    return share


class Sweep:
    """Stands in for conftest's Lab where a job prepares what it reads: that is made in eager order, once."""

    def __init__(self, folder):
        self.folder, self.shared = folder, folder / "shared"
        self.shared.mkdir()

    def good(self, job, arm):
        done = self.folder / f"{job.name}-prepared"
        if not done.exists():
            self.run(job, "eager", 0, done.name, arm)

    def run(self, job, order, seed, name, arm="sweep", before=None):
        """(figures, {rank: the node's record}); raises when a rank fails."""
        if job.prepare:
            job.prepare(self, arm)
        folder = self.folder / name
        folder.mkdir()
        out = folder / "out.json"
        command = [str(word).format(dir=folder, shared=self.shared, out=out, arm=arm) for word in job.command]
        port, children = free_port(), []
        for rank in range(job.world):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    rank_main(command, job.world, rank, order, seed, folder, port, before)
                    status = 0
                except SystemExit as end:
                    status = int(bool(end.code))
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                sys.exit(status)
            children.append(child)
        failed = [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1] != 0]
        said = "".join((folder / f"output.{rank}").read_text(errors="replace") for rank in range(job.world))
        if failed or "b200vnode: race" in said:
            raise AssertionError(f"ranks {failed} failed, or raced:\n{said[-4000:]}")
        result = job.collect(folder) if job.collect else json.loads(out.read_text())
        nodes = {}
        for path in folder.glob("*.node.jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            nodes[records[0]["rank"]] = next(r for r in records if r["t"] == "node")
        assert sorted(nodes) == list(range(job.world)), f"{sorted(nodes)} left a count"
        for node in nodes.values():
            assert (node["order"], node["races"]) == (order, 0), node
        figures = {name: result[name] for name in ("losses", "grad_norms") if name in result}
        assert len(figures["losses"]) > 1, "the job reported no losses"
        return figures, {rank: node["modelled_ns"] for rank, node in nodes.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", action="append", help="this client; may be given again")
    parser.add_argument("--brief", action="store_true", help="one run in eager order, and the seeds")
    parser.add_argument("--precision", choices=PRECISIONS, help="convert GEMMs to this format")
    args = parser.parse_args()
    if args.precision:
        os.environ.update(B200OPT_PRECISION=args.precision, B200OPT_STRATEGY="always")
    names = [job.name for job in CLIENTS]
    if unknown := set(args.only or ()) - set(names):
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    wanted = [job for job in CLIENTS if not args.only or job.name in args.only]
    for module in IMPORTS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    sweep = Sweep(pathlib.Path(tempfile.mkdtemp(prefix="sweep-")))
    passed = failed = 0
    for job in wanted:
        if missing := [module for module in job.needs if importlib.util.find_spec(module) is None]:
            print(f"{job.name}: SKIP: needs {', '.join(missing)} (tests/e2e/requirements.txt)", flush=True)
            continue
        start = time.monotonic()
        # Workers' modelled time depends on when they fill the queue, and that of the guard on when it finds its samples ready.
        timed = job not in LOADERS and "hf-trainer" not in job.name and not args.precision
        eager, eager_ns = sweep.run(job, "eager", 0, f"{job.name}-eager")
        again, again_ns = (eager, eager_ns) if args.brief else sweep.run(job, "eager", 0, f"{job.name}-eager-again")
        assert again == eager and (not timed or again_ns == eager_ns), f"{job.name}: two eager runs differ: {eager_ns} {again_ns}"
        note = ""
        if args.precision and job not in (FP32_ACCUM, LOADER_PLAIN, *LOADERS):  # all FP32
            note = f"; {100 * converted(sweep.folder / f'{job.name}-eager', args.precision):.0f} % converted"
        late_ns, bad = {}, 0
        orders = [*([] if args.brief else [("deferred", 0), ("deferred", 1)]), *(("adversarial", seed) for seed in range(1, args.seeds + 1))]
        for order, seed in orders:
            name = f"{job.name}-{order}-{seed}"
            try:
                figures, nanoseconds = sweep.run(job, order, seed, name)
                assert figures == eager, f"figures differ: {figures} {eager}"
                if order == "deferred":
                    late_ns = late_ns or nanoseconds
                    assert not timed or nanoseconds == late_ns, f"modelled times differ: {nanoseconds} {late_ns}"
                passed += 1
            except AssertionError as error:
                bad += 1
                print(f"{name}: {error}", flush=True)
        failed += bad
        print(f"{job.name}: {len(orders)} late runs, {bad} bad; modelled {eager_ns[0] / 1e6:.3f} ms eager, "
              f"{late_ns.get(0, 0) / 1e6:.3f} ms deferred{note}; {time.monotonic() - start:.0f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
