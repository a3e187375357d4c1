# SPDX-License-Identifier: Apache-2.0
"""Every plain training job of the matrix in eager, deferred and many seeds of adversarial order: bit-identical losses and gradient norms
and no race. Two eager and two deferred runs take the same modelled time; in adversarial order PyTorch's allocator hears at other
times that a block is free, and may ask the driver more or less often.

    b200opt dryrun --gpus 4 --log DIR -- python tests/e2e/sweep.py [--seeds 20] [--steps 8]

PyTorch is imported once; each run is forked from that process before it has touched CUDA, which saves most of a run's time.
"""
import argparse
import json
import os
import pathlib
import socket
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools" / "demo_job")]
import torch.distributed.checkpoint  # noqa: E402,F401
import train  # noqa: E402
from matrix import COUNTED  # noqa: E402


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_main(job, rank, order, seed, steps, folder, port):
    """Runs in a forked child."""
    with open(folder / f"output.{rank}", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    words = [str(word) for word in job.command[1:]]
    words[words.index("{out}")] = str(folder / "out.json")
    words[words.index("--steps") + 1] = str(steps)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world), LOCAL_WORLD_SIZE=str(job.world), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), B200OPT_VNODE_ORDER=order, B200OPT_VNODE_SEED=str(seed), B200OPT_VNODE_SESSION=folder.name,
        B200OPT_VNODE_LOG_DIR=str(folder), B200OPT_LOG_DIR=str(folder / "shim"),
    )
    sys.argv = ["train.py", *words]
    train.main()


def run(job, order, seed, steps, folder):
    """(figures, {rank: the node's record}); raises when a rank fails."""
    folder.mkdir()
    port, children = free_port(), []
    for rank in range(job.world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rank_main(job, rank, order, seed, steps, folder, port)
                status = 0
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
    result = json.loads((folder / "out.json").read_text())
    nodes = {}
    for path in folder.glob("*.node.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        nodes[records[0]["rank"]] = next(r for r in records if r["t"] == "node")
    assert sorted(nodes) == list(range(job.world)), f"{sorted(nodes)} left a count"
    for node in nodes.values():
        assert (node["order"], node["races"]) == (order, 0), node
    return {name: result[name] for name in ("losses", "grad_norms")}, {rank: node["modelled_ns"] for rank, node in nodes.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", help="jobs whose name has this")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="sweep-"))
    passed = failed = 0
    for job in COUNTED:
        if args.only and args.only not in job.name:
            continue
        start = time.monotonic()
        eager, eager_ns = run(job, "eager", 0, args.steps, work / f"{job.name}-eager")
        again, again_ns = run(job, "eager", 0, args.steps, work / f"{job.name}-eager-again")
        assert (again, again_ns) == (eager, eager_ns), f"{job.name}: two eager runs differ: {eager_ns} {again_ns}"
        late_ns, bad = {}, 0
        orders = [("deferred", 0), ("deferred", 1), *(("adversarial", seed) for seed in range(1, args.seeds + 1))]
        for order, seed in orders:
            name = f"{job.name}-{order}-{seed}"
            try:
                figures, nanoseconds = run(job, order, seed, args.steps, work / name)
                assert figures == eager, f"figures differ: {figures} {eager}"
                if order == "deferred":
                    late_ns = late_ns or nanoseconds
                    assert nanoseconds == late_ns, f"modelled times differ: {nanoseconds} {late_ns}"
                passed += 1
            except AssertionError as error:
                bad += 1
                print(f"{name}: {error}", flush=True)
        failed += bad
        print(f"{job.name}: {len(orders)} late runs, {bad} bad; modelled {eager_ns[0] / 1e6:.3f} ms eager, "
              f"{late_ns.get(0, 0) / 1e6:.3f} ms deferred; {time.monotonic() - start:.0f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
