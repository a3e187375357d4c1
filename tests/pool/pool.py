# SPDX-License-Identifier: Apache-2.0
"""Runs a program of this folder bare, with B200OPT=off, observed and with the pool, and reads the logs."""
import json
import os
import pathlib
import subprocess

BUILD = pathlib.Path(os.environ["B200_BUILD"])
HERE = BUILD / "tests" / "pool"
LIBRARY = BUILD / "libb200opt.so"
ARMS = ("bare", "off", "observe", "pool")
SKIPPED = 77


def environment(arm, folder, behind=None, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k not in ("LD_PRELOAD", "RANK", "WORLD_SIZE")}
    env["LD_LIBRARY_PATH"] = f"{BUILD}/vnode:{env.get('LD_LIBRARY_PATH', '')}"
    env["B200OPT_VNODE_SESSION"] = f"pool-{os.getpid()}-{abs(hash(str(folder)))}-{arm}"
    if arm != "bare":
        env.update(LD_PRELOAD=str(LIBRARY), B200OPT_LOG_DIR=str(folder / arm), B200OPT_RUN="run")
        env.update({"off": {"B200OPT": "off"}, "observe": {}, "pool": {"B200OPT_MEMORY": "pool"}}[arm])
    if behind:
        env["LD_PRELOAD"] = ":".join(filter(None, (env.get("LD_PRELOAD"), str(behind))))
    env.update(more)
    return env


def run(arm, folder, *command, behind=None, **more):
    return subprocess.run([str(HERE / command[0]), *map(str, command[1:])], env=environment(arm, folder, behind, **more), capture_output=True,
                          text=True, timeout=300)


def records(folder, arm, kind):
    return [r for path in sorted((folder / arm).rglob("*.jsonl")) for r in map(json.loads, path.read_text().splitlines()) if r["t"] == kind]


def summed(folder, arm, field):
    return sum(r[field] for r in records(folder, arm, "pool"))
