# SPDX-License-Identifier: Apache-2.0
"""Makes calls of small programs fail, bare and with libb200opt.so in front, and compares what they do. usage: faults.py
Every call of every function fails once with a status and once with the end of the context; test_faults.py takes a part of them."""
import collections
import difflib
import fnmatch
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["B200_BUILD"])
HERE = BUILD / "tests" / "vnode_faults"
LIBRARY = BUILD / "libb200opt.so"
PROGRAMS = {"runtime": 1, "driver": 1, "blas": 1, "nccl1": 1, "nccl2": 2}
RANKS = {**PROGRAMS, "memory": 1}  # the last: pool_faults.py
ARMS = ("bare", "observed")
CASES_AT_ONCE = 200

# Calls that the observing library makes on its own account, by what it wants to know. One of them that fails must change nothing.
OWN_CALLS = {
    "cuCtxGetDevice": "which device memory belongs to",
    "cuDeviceGetName": "for the log's header",
    "cuDriverGetVersion": "for the log's header",
    "cudaRuntimeGetVersion": "for the log's header",
    "ncclGetVersion": "for the log's header",
    "cublasLtGetVersion": "for the log's header",
    "cuMemGetInfo_v2": "what the device has in use",
    "cuCtxGetCurrent": "which GPU a GEMM is for",
    "cuDeviceGetAttribute": "what that GPU can convert",
    "cublasGetStream_v2": "where a GEMM runs",
    "cublasGetPointerMode_v2": "where alpha and beta are",
    "ncclCommCount": "bytes of a collective",
    "cublasLtMatmulDescGetAttribute": "operations of a matmul",
    "cublasLtMatrixLayoutGetAttribute": "shapes of a matmul",
    "cuDeviceGetPCIBusId": "which device of NVML's it is",
    "cuDeviceGetUuid_v2": "the same",
    "ncclCommUserRank": "who this is in a communicator",
    "cuEventCreate": "events of the timing",
    "cuEventRecord": "times of collectives, waits and steps",
    "cuEventElapsedTime": "to read them back",
    "cuStreamGetFlags": "whether a stream is ordered with the default stream",
    "cuStreamIsCapturing": "whether a stream may have an event of the timing",
    "cuStreamCreateWithPriority": "a stream for the times of issue",
    "cuCtxGetStreamPriorityRange": "its priority",
    "cuThreadExchangeStreamCaptureMode": "so that reading back disturbs no capture",
}

# A status that the function can give: (pattern, status), the first that fits.
STATUSES = (
    ("cu*Query", 600), ("cu*Alloc*", 2), ("cu*Malloc*", 2), ("cu*Create*", 2), ("cu*Reserve*", 2), ("cu*Map", 2), ("cu*Register*", 2),
    ("cu*GetProcAddress*", 500), ("cu*EntryPoint*", 500), ("cublas*Create*", 3), ("cublas*", 13), ("cuda*Set*", 101), ("cu*Free*", 1), ("cu*Destroy*", 400),
    ("cu*", 719), ("__cuda*", 719), ("ncclCommInit*", 6), ("ncclMemAlloc", 1), ("ncclComm*", 3), ("nccl*", 1), ("nvml*", 999),
)

NO_STATUS = re.findall(r'^VNODE_NO_STATUS\("([^"]+)"\)', (ROOT / "tools/vnode/core/hooks.def").read_text(), re.M)


def can_fail(function):
    return not any(fnmatch.fnmatchcase(function, row) for row in NO_STATUS)


def status_for(function):
    return next(status for pattern, status in STATUSES if fnmatch.fnmatchcase(function, pattern))


def environment(arm, folder, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k not in ("LD_PRELOAD", "RANK", "WORLD_SIZE")}
    env.update(B200OPT_VNODE_KERNELS="skip", **more)
    if arm != "bare":
        env.update(LD_PRELOAD=str(LIBRARY), B200OPT_LOG_DIR=str(folder), B200OPT_RUN="run")
    return env


def run(program, faults, arm, **more):
    """What the program does with each of the faults: {fault: (stdout, stderr, end)}; fault "-" is none."""
    found = {}
    for start in range(0, len(faults), CASES_AT_ONCE):
        with tempfile.TemporaryDirectory() as folder:
            text = subprocess.run([HERE / f"faulty_{program}"], input="\n".join(faults[start:start + CASES_AT_ONCE]) + "\n", text=True,
                                  capture_output=True, check=True, env=environment(arm, folder, **more)).stdout
        text = re.sub(r"\(pid \d+\)", "(pid)", text)
        text = re.sub(r"^b200opt: oom: .*\n", "", text, flags=re.M)  # an allocation that is refused for good is explained, on purpose
        for block in re.split(r"^== ", text, flags=re.M)[1:]:
            fault, rest = block.split("\n", 1)
            out, rest = rest.split("-- stderr\n", 1)
            err, end = re.fullmatch(r"(.*)-- ((?:exit|signal) \d+)\n", rest, re.S).groups()
            if RANKS[program] > 1:  # ranks share stderr
                err = "".join(sorted(err.splitlines(True)))
            found[fault] = (out, err, end)
    assert list(found) == list(dict.fromkeys(faults)), f"{program} lost cases"
    return found


def call_counts(program, arm, **more):
    """Calls of each function, per rank: {(function, rank or None): calls}."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        run(program, ["-"], arm, B200OPT_VNODE_TRACE=f"{folder}/", **more)
        for path in pathlib.Path(folder).glob("*.trace"):
            rank = int(re.match(r"r(-?\d+)-", path.name)[1])
            for line in path.read_text().splitlines():
                counts[line.split()[1], None if rank < 0 else rank] += 1
    return counts


def fault_of(function, rank, call, effect):
    return f"{function}{'' if rank is None else f'@{rank}'}:{call}:{effect}"


def chosen(function, calls, everything):
    """All calls, or the first and the last; all where memory can run out."""
    return range(1, calls + 1) if everything or status_for(function) == 2 else sorted({1, calls})


def without_strike(outcome):
    out, err, end = outcome
    return out, re.sub(r"^b200vnode: injected fault: .*\n", "", err, flags=re.M), end


def differences(program, everything):
    """Runs the campaign of a program; returns (cases, texts of what differs)."""
    counts = {arm: call_counts(program, arm) for arm in ARMS}
    own = {function for function, rank in counts["observed"] if counts["observed"][function, rank] != counts["bare"][function, rank]}
    wrong = [f"{program}: {name} is called by the library and not in OWN_CALLS" for name in sorted(own - set(OWN_CALLS))]
    plain, shared = ["-"], {}
    for (function, rank), calls in sorted(counts["observed"].items(), key=str):
        if not can_fail(function):
            continue
        if function in own:
            shared[function, rank] = [fault_of(function, rank, n, status_for(function)) for n in range(1, calls + 1)]
            continue
        for n in chosen(function, calls, everything):
            plain.append(fault_of(function, rank, n, status_for(function)))
            if everything or n == 1:
                plain.append(fault_of(function, rank, n, "sticky=700"))
    faults = plain + list(itertools.chain(*shared.values()))
    outcomes = {arm: run(program, faults, arm) for arm in ARMS}
    for fault in plain:
        bare, observed = outcomes["bare"][fault], outcomes["observed"][fault]
        if fault != "-" and "injected fault" not in bare[1]:
            wrong.append(f"{program} {fault}: met no call")
        if bare != observed:
            wrong.append(f"{program} {fault}:\n{explain(bare, observed)}")
    for (function, rank), of_function in shared.items():
        # The library's call or the program's own: either way the program sees what it sees bare.
        allowed = [without_strike(outcomes["bare"][f]) for f in ["-"] + of_function]
        for fault in of_function:
            if without_strike(outcomes["observed"][fault]) not in allowed:
                wrong.append(f"{program} {fault} (a call of the library):\n{explain(allowed[0], without_strike(outcomes['observed'][fault]))}")
    return len(faults), wrong


def explain(bare, observed):
    texts = ["".join(part if part.endswith("\n") or not part else part + "\n" for part in outcome) for outcome in (bare, observed)]
    return "\n".join(list(difflib.unified_diff(texts[0].splitlines(), texts[1].splitlines(), "bare", "observed", lineterm="", n=1))[:20])


def tell(name, cases, wrong):
    """Prints the result of a campaign; returns how many differences there are."""
    print(f"{name}: {cases} faults, {len(wrong)} differences", flush=True)
    print("\n".join(wrong), flush=True) if wrong else None
    return len(wrong)


def hooked_functions():
    """Of the stand-ins that the programs link: those for CUDA 13."""
    names = set()
    for library in ("cudart", "cuda", "cublas", "cublaslt", "nccl", "nvml"):
        names.update((BUILD / "vnode" / f"vnode_{library}.hooks.txt").read_text().split())
    return sorted(names)


def sweep(arm, names):
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([HERE / "faulty_sweep", *names], text=True, capture_output=True, check=True, env=environment(arm, folder))
    return result.stdout, result.stderr


def main():
    failed = sum(tell(program, *differences(program, everything=True)) for program in PROGRAMS)
    names = hooked_functions()
    bare, observed = sweep("bare", names), sweep("observed", names)
    print(f"sweep: {len(names)} functions, {'no difference' if bare == observed else 'DIFFERENT'}")
    failed += bare != observed
    print(f"{len(PROGRAMS) + 1} programs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
