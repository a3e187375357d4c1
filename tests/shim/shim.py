# SPDX-License-Identifier: Apache-2.0
"""Runs a program bare, with B200OPT=off, and observed, and reads the logs."""
import json
import os
import pathlib
import subprocess

BUILD = pathlib.Path(os.environ["B200_BUILD"])
LIBRARY = BUILD / "libb200opt.so"
HERE = BUILD / "tests" / "shim"
STANDINS = BUILD / "vnode"
# What distinguishes the names of programs that are built for each CUDA.
CUDA_SUFFIX = {"13": "", "12": "12"}
CUDA_MAJORS = os.environ["B200_CUDA_MAJORS"].split(",")
ARMS = ("bare", "off", "observed")


def environment(arm, logs=None, preload=(), **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    libraries = [str(p) for p in preload]
    if arm != "bare":
        libraries.insert(0, str(LIBRARY))
    if arm == "off":
        env["B200OPT"] = "off"
    if libraries:
        env["LD_PRELOAD"] = ":".join(libraries)
    if logs:
        env["B200OPT_LOG_DIR"] = str(logs)
        env["B200OPT_RUN"] = "run"
    env.update(more)
    return env


def run(command, env, **options):
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, **options)


def read_logs(folder):
    """Every record of every log under the folder, one list per file."""
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(pathlib.Path(folder).rglob("*.jsonl"))]


def total(records, name, key="calls"):
    return sum(r[key] for r in records if r["t"] == "call" and r["name"] == name)


def owners(records):
    """Last state and summed calls of each owner of device memory."""
    out = {}
    for r in records:
        if r["t"] == "alloc":
            o = out.setdefault(r["owner"], {"allocs": 0, "frees": 0, "failed": 0})
            o.update(current=r["current"], peak=r["peak"])
            for key in ("allocs", "frees", "failed"):
                o[key] += r[key]
    return out
