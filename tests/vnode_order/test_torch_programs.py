# SPDX-License-Identifier: Apache-2.0
"""Every program of torch_programs.py in every order: the right version is right and nothing is reported; of the wrong one the
race checker names the mistake, and where numbers can show it, they do in some order."""
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import torch_programs
from torch_programs import PROGRAMS, RIGHT, WRONG

SEEDS = int(os.environ.get("B200_TEST_SEEDS", "3"))
LATE = [("deferred", 0)] + [("adversarial", seed) for seed in range(1, SEEDS + 1)]


@functools.lru_cache(None)
def run_all(order, seed):
    """{(name, wrong): (the numbers are right, lines of the node)}"""
    env = dict(os.environ, B200OPT_VNODE_ORDER=order, B200OPT_VNODE_SEED=str(seed))
    path = pathlib.Path(torch_programs.__file__)
    output = subprocess.run([sys.executable, str(path)], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    results = {}
    for name, wrong, statuses, said in json.loads(output):
        assert set(statuses) <= {RIGHT, WRONG}, (name, wrong, order, seed, statuses, said)
        lines = [line for line in said.splitlines() if line.startswith("b200vnode: ")]
        results[name, wrong] = WRONG not in statuses, lines
    return results


def is_named(program, lines):
    pattern = f"b200vnode: race: {program.kind}: [^ ]*{program.newer}[^ ]*[ ,]"
    pattern += f".*, which [^ ]*{program.older}" if program.older else ""
    return any(re.match(pattern, line) for line in lines)


@pytest.mark.parametrize("name", PROGRAMS)
def test_right(name):
    for order, seed in [("eager", 0)] + LATE:
        assert run_all(order, seed)[name, False] == (True, []), (order, seed)


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrong(name):
    program, shown = PROGRAMS[name], 0
    for order, seed in LATE:
        right, lines = run_all(order, seed)[name, True]
        shown += not right
        in_time = program.kind == "host memory changed" and right  # the copy ran before the host went on
        assert in_time or (is_named(program, lines) if program.kind else not lines), (order, seed, lines)
    assert shown or not program.shows, "the numbers never showed it"
