# SPDX-License-Identifier: Apache-2.0
"""Faults in the demo job: FSDP2 on two ranks, with one call of one rank made to fail, bare and with libb200opt.so in front.
usage: demo_faults.py [CASES [SEED]] [--precision fp8|mxfp8]       default: 300 1; test_demo_faults.py runs a few

A fault is a function that the job calls, one of its calls, a status that it can give (or, one time in five, the end of the context), and a rank.
What counts as the job's behaviour is, per rank: how it ends, the exceptions that it names, and the losses that it prints. Two ranks and
PyTorch's watchdog threads race when one fails: where the arms differ, both run again, and the observed job must do what the bare one also does.

With --precision the library converts GEMMs, and the faults are in functions that it calls for that: the job must end well, with the losses of
training, or as the bare job does when that function fails there.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import faults

VNODE = faults.BUILD / "vnode"
STANDINS = ("libb200vnode.so", "libcudart.so.13", "libcuda.so.1", "libcublasLt.so.13", "libcublas.so.13", "libnccl.so.2")
TRAIN = faults.ROOT / "tools" / "demo_job" / "train.py"
ARGUMENTS = ["--steps", "3", "--width", "64", "--layers", "1", "--seq", "32", "--batch", "2", "--text-mb", "0.05"]
RANKS = 2
GRACE_S = 15
RERUNS = 4

EXCEPTION = re.compile(r"^(?:\[rank\d\]: ?)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.M)

Outcome = collections.namedtuple("Outcome", "end struck exceptions losses")


class Server:
    """demo_server.py on the stand-ins; a run a line."""

    def __init__(self, arm, **more):
        self.arm, self.runs = arm, 0
        self.logs = tempfile.TemporaryDirectory()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "TORCHELASTIC"))}
        preload = [str(VNODE / name) for name in STANDINS]
        if arm != "bare":
            preload.insert(0, str(faults.LIBRARY))
            env.update(B200OPT_LOG_DIR=self.logs.name, B200OPT_RUN="run", **more)
        env.update(LD_PRELOAD=":".join(preload), B200OPT_VNODE_ATEN_DIR=str(VNODE / "aten"), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        self.process = subprocess.Popen([sys.executable, str(pathlib.Path(__file__).with_name("demo_server.py")), str(TRAIN), str(GRACE_S)],
                                        env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, fault=None, timeout_s=None, **environment):
        """One list of records a rank: see demo_server.py."""
        self.runs += 1
        environment["B200OPT_VNODE_SESSION"] = f"demo-{os.getpid()}-{self.arm}-{self.runs}"
        if fault:
            environment["B200OPT_VNODE_FAULT"] = fault
        self.process.stdin.write(json.dumps({"environment": environment, "arguments": ARGUMENTS, "timeout_s": timeout_s}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def outcomes(self, fault=None, **options):
        return [outcome_of(record) for record in self.run(fault, **options)]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.logs.cleanup()


@contextlib.contextmanager
def both_arms(precision=None):
    """The bare job, and the one with the library, which observes or converts."""
    more = {"B200OPT_PRECISION": precision, "B200OPT_STRATEGY": "always"} if precision else {}
    servers = Server("bare"), Server("converted" if precision else "observed", **more)
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def outcome_of(record):
    text = re.sub(r"\(pid \d+\)|0x[0-9a-f]+|:\d{4,5}\b", "…", record["err"])
    named = tuple(dict.fromkeys(line.strip() for line in EXCEPTION.findall(text)))
    return Outcome(record["end"], "injected fault" in record["err"], named, tuple(re.findall(r"step (\d+) loss (\S+)", record["out"])))


def call_counts(server):
    with tempfile.TemporaryDirectory() as folder:
        records = server.run(B200OPT_VNODE_TRACE=f"{folder}/")
        assert [r["end"] for r in records] == [0] * RANKS, records
        counts = {}
        for rank in range(RANKS):
            (path,) = pathlib.Path(folder).glob(f"r{rank}-*.trace")
            counts[rank] = collections.Counter(line.split()[1] for line in path.read_text().splitlines())
    return counts


def sample(counts, cases, seed):
    """A reproducible choice: every function is as likely as every other."""
    chooser, found = random.Random(seed), {}
    functions = {rank: sorted(f for f in counts[rank] if faults.can_fail(f) and f not in faults.OWN_CALLS) for rank in counts}
    while len(found) < cases:
        rank = chooser.randrange(RANKS)
        function = chooser.choice(functions[rank])
        call = chooser.randint(1, counts[rank][function])
        effect = "sticky=700" if chooser.random() < 0.2 else faults.status_for(function)
        found[faults.fault_of(function, rank, call, effect)] = True
    return list(found)


def compare(bare, observed, fault, **options):
    """"same", "same again" (after more runs) or the text of the difference."""
    def run_both():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for arm, outcome in zip(seen, pool.map(lambda server: server.outcomes(fault, **options), (bare, observed))):
                seen[arm].append(outcome)

    seen = {"bare": [], "observed": []}
    run_both()
    for again in range(RERUNS):
        sets = {arm: [set(run[rank] for run in runs) for rank in range(RANKS)] for arm, runs in seen.items()}
        if all(sets["bare"][rank] & sets["observed"][rank] for rank in range(RANKS)):
            return "same again" if again else "same"
        run_both()
    return f"{fault}:\n" + "\n".join(f"  {arm} rank {rank}: {run[rank]}" for arm, runs in seen.items() for run in runs for rank in range(RANKS))


def campaign(cases, seed, tell=lambda text: None):
    """(Counter of results, texts of the differences)"""
    with both_arms() as (bare, observed):
        whole = {server.arm: server.outcomes() for server in (bare, observed)}
        assert whole["bare"] == whole["observed"] and all(o.end == 0 for o in whole["bare"]), whole
        results, wrong = collections.Counter(), []
        for fault in sample(call_counts(bare), cases, seed):
            result = compare(bare, observed, fault)
            results[result if result.startswith("same") else "different"] += 1
            if not result.startswith("same"):
                wrong.append(result)
            tell(f"{sum(results.values())} {fault}: {result}")
        return results, wrong


def conversion_faults(before, after, cases, seed):
    """A reproducible choice of calls that only the converted job makes, and its own of the same functions. The first is always of CUDA's
    runtime, which keeps a failure for the thread's next cudaGetLastError()."""
    chooser, first = random.Random(seed), ("cudaRuntimeGetVersion", 0, 1)
    found = {faults.fault_of(*first, faults.status_for(first[0])): first}
    functions = {rank: sorted(f for f in after[rank] if faults.can_fail(f) and f.startswith("cu") and after[rank][f] > before[rank][f]) for rank in after}
    assert all("cublasLtMatmulAlgoGetHeuristic" in f and "cuLaunchKernel" in f for f in functions.values()), "nothing is converted"
    while len(found) < cases:
        rank = chooser.randrange(RANKS)
        function = chooser.choice(functions[rank])
        call = chooser.randint(1, after[rank][function])
        found[faults.fault_of(function, rank, call, faults.status_for(function))] = (function, rank, call)
    return found


def ends_well(outcomes, whole):
    """Whether all ranks train to the end, with losses as near to those of BF16 as a narrow format's."""
    losses = [[float(loss) for _, loss in outcome.losses] for outcome in outcomes]
    expected = [[float(loss) for _, loss in outcome.losses] for outcome in whole]
    return all(o.end == 0 for o in outcomes) and [len(l) for l in losses] == [len(l) for l in expected] and all(
        abs(a - b) < 0.02 * b for ours, theirs in zip(losses, expected) for a, b in zip(ours, theirs))  # False for NaN


def as_the_bare_job(bare, outcomes, struck, calls):
    """Whether the rank of a bare job in which that function fails, at this call or, as the others are the library's, at an earlier one,
    ends so. The other rank's end is a race."""
    function, rank, call = struck
    for n in range(min(call, calls), max(0, min(call, calls) - RERUNS), -1):
        seen = bare.outcomes(faults.fault_of(function, rank, n, faults.status_for(function)))[rank]
        if (seen.end, seen.exceptions) == (outcomes[rank].end, outcomes[rank].exceptions):
            return True
    return False


def converted_campaign(precision, cases, seed, tell=lambda text: None):
    """(Counter of results, texts of the differences)"""
    with both_arms(precision) as (bare, converted):
        whole = bare.outcomes()
        assert ends_well(converted.outcomes(), whole), "without a fault"
        before, after = call_counts(bare), call_counts(converted)
        results, wrong = collections.Counter(), []
        for fault, struck in conversion_faults(before, after, cases, seed).items():
            outcomes, (function, rank, _) = converted.outcomes(fault), struck
            calls = before[rank][function]
            if not outcomes[rank].struck:
                result = "met no call"
            elif ends_well(outcomes, whole):
                result = "ends well"
            elif calls and as_the_bare_job(bare, outcomes, struck, calls):
                result = "as the bare job"
            else:
                result = "different"
            results[result] += 1
            if result in ("different", "met no call"):
                wrong.append(f"{fault}: {result}\n" + "\n".join(f"  rank {r}: {o}" for r, o in enumerate(outcomes)))
            tell(f"{sum(results.values())} {fault}: {result}")
        return results, wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=int, nargs="?", default=300)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--precision", choices=("fp8", "mxfp8"))
    arguments = parser.parse_args()

    def tell(text):
        print(text, flush=True)

    if arguments.precision:
        results, wrong = converted_campaign(arguments.precision, arguments.cases, arguments.seed, tell)
    else:
        results, wrong = campaign(arguments.cases, arguments.seed, tell)
    print("\n".join(wrong))
    print(dict(results))
    print(f"{sum(results.values())} faults, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
