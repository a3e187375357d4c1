# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of robust.c bare and with the library, and reads what they leave."""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import types

BUILD = pathlib.Path(os.environ["B200_BUILD"])
PROGRAM = BUILD / "tests" / "timing" / "timing_robust"
LIBRARY = BUILD / "libb200opt.so"
REPORT = BUILD / "b200opt"
LONG = os.environ.get("B200_LONG") == "1"

# Functions of the driver that the timing calls; the programs themselves use the runtime only.
TIMING_CALLS = ("cuEventCreate", "cuEventRecord", "cuEventElapsedTime", "cuEventQuery", "cuStreamGetFlags", "cuStreamCreateWithPriority",
                "cuCtxGetStreamPriorityRange", "cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuStreamIsCapturing")


def environment(folder, arm, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("B200OPT", "CUDA_")) and k not in ("LD_PRELOAD", "RANK", "WORLD_SIZE")}
    env["B200OPT_VNODE_SESSION"] = f"robust-{os.getpid()}-{folder.name}-{arm}"
    if arm != "bare":
        env.update(LD_PRELOAD=str(LIBRARY), B200OPT_LOG_DIR=str(folder / "logs"), B200OPT_RUN="run")
    env.update({k: str(v) for k, v in more.items()})
    return env


def run(folder, scenario, steps, collectives, ranks=1, arm="observed", timeout=120, **more):
    """Everything that can be seen of a run. `said`: stderr of the library; `printed`: what the program and its ranks print."""
    place = folder / arm
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([PROGRAM, scenario, str(steps), str(collectives), str(ranks)], env=environment(place, arm, **more), cwd=place,
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    printed = done.stdout + "".join((place / f"out.{rank}").read_text() for rank in range(ranks) if ranks > 1)
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    # the device's times are not the program's results: the library's own calls take time on the host
    results = re.sub(r'"dur_ns": \d+', '"dur_ns": _', printed)
    return types.SimpleNamespace(code=done.returncode, printed=printed, results=results, told=told, place=place,
                                 said=re.findall(r"^b200opt: (.*)$", done.stderr, re.M),
                                 other=[line for line in done.stderr.splitlines() if not line.startswith(("b200opt:", "b200vnode: injected"))])


def same(bare, observed):
    assert (observed.code, observed.results, observed.other) == (bare.code, bare.results, bare.other)


def pair(folder, scenario, steps, collectives, ranks=1, **more):
    bare = run(folder, scenario, steps, collectives, ranks, arm="bare")
    observed = run(folder, scenario, steps, collectives, ranks, **more)
    same(bare, observed)
    return observed


def logs(place):
    """Lines of each log, by rank; `name` is the file's."""
    found = {}
    for path in sorted((place / "logs").rglob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[max(lines[0]["rank"], 0)] = lines
    return found


def of_type(log, kind):
    return [line for line in log if line["t"] == kind]


def total(log, kind, field):
    return sum(line[field] for line in of_type(log, kind))


def counts(log):
    return collections.Counter(line["t"] for line in log)


def dropped(log):
    out = collections.Counter()
    for line in of_type(log, "drop"):
        out[line["what"]] += line["count"]
    return out


def untimed(log):
    out = collections.Counter()
    for line in of_type(log, "untimed"):
        out[line["why"]] += line["calls"]
    return out


def modes(log):
    return [(line["mode"], line["why"]) for line in of_type(log, "timing")]


def report(place, *options):
    done = subprocess.run([REPORT, "report", *options, str(place / "logs")], capture_output=True, text=True, timeout=120,
                          env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    assert done.returncode == 0 and not done.stderr, (done.returncode, done.stderr)
    return done.stdout


def traces(place):
    """Calls of each process, as (thread, function, arguments); marks are calls of "####"."""
    out = {}
    for path in place.glob("*.trace"):
        out[path.name] = [tuple((line.split(" ", 2) + ["", ""])[:3]) for line in path.read_text().splitlines()]
    return out


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return process.wait()
