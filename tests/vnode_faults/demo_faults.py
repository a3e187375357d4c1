# SPDX-License-Identifier: Apache-2.0
"""Faults in the demo job: FSDP2 on two ranks, with one call of one rank made to fail, bare and with libb200opt.so in front.
usage: demo_faults.py [CASES [SEED]]       default: 300 1; test_demo_faults.py runs a few

A fault is a function that the job calls, one of its calls, a status that it can give (or, one time in five, the end of the context), and a rank.
What counts as the job's behaviour is, per rank: how it ends, the exceptions that it names, and the losses that it prints. Two ranks and
PyTorch's watchdog threads race when one fails: where the arms differ, both run again, and the observed job must do what the bare one also does.
"""
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

    def __init__(self, arm):
        self.arm, self.runs = arm, 0
        self.logs = tempfile.TemporaryDirectory()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "TORCHELASTIC"))}
        preload = [str(VNODE / name) for name in STANDINS]
        if arm == "observed":
            preload.insert(0, str(faults.LIBRARY))
            env.update(B200OPT_LOG_DIR=self.logs.name, B200OPT_RUN="run")
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
def both_arms():
    servers = Server("bare"), Server("observed")
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


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    results, wrong = campaign(cases, int(sys.argv[2]) if len(sys.argv) > 2 else 1, tell=lambda text: print(text, flush=True))
    print(dict(results))
    print(f"{sum(results.values())} faults, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
