# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

COMMAND = os.environ.get("B200_COMMAND", "b200opt")


@pytest.fixture
def b200opt():
    """Runs the command: b200opt(arguments, status=0) → its standard output; `.stderr` of the last run."""

    def run(*arguments, status=0):
        done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, timeout=120)
        assert done.returncode == status, done.stderr.decode(errors="replace")
        run.stderr = done.stderr.decode()
        return done.stdout.decode()

    return run


@pytest.fixture
def communication(b200opt):
    """communication(folder) → that part of the report."""

    def read(folder, status=0):
        return json.loads(b200opt("report", folder, "--json", status=status))["report"]["communication"]

    return read
