# SPDX-License-Identifier: Apache-2.0
"""Runs `b200opt replay` of the build in B200_BUILD."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

COMMAND = pathlib.Path(os.environ["B200_BUILD"]) / "b200opt"


class Replay:
    def __init__(self, folder):
        self.folder = folder

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(self, *arguments):
        return subprocess.run([COMMAND, "replay", *map(str, arguments)], capture_output=True, cwd=self.folder, timeout=300)

    def report(self, *arguments, status=0):
        done = self.run("--json", *arguments)
        assert done.returncode == status, done.stderr.decode()
        return json.loads(done.stdout)

    def policies(self, *arguments, **options):
        return {row["policy"]: row for row in self.report(*arguments, **options)["policies"]}


@pytest.fixture
def replay(tmp_path):
    return Replay(tmp_path)
