# SPDX-License-Identifier: Apache-2.0
"""Options and the one condition of the GPU checks. The environment is left as it is: on a machine without a GPU,
`b200opt dryrun --bare -- python -m pytest tests/gpu …` rehearses them on the virtual node."""
import functools
import pathlib
import subprocess
import sys

import pytest

SKIP_STATUS = 77  # ctest's SKIP_RETURN_CODE


def pytest_addoption(parser):
    parser.addoption("--build", type=pathlib.Path, required=True, help="the build folder")


@functools.cache
def devices():
    """How many GPUs PyTorch sees; asked in a child so that this process stays free of CUDA."""
    child = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True)
    return int(child.stdout) if child.returncode == 0 else 0


@pytest.fixture(scope="session", autouse=True)
def gpus():
    if devices() == 0:
        pytest.skip("no GPU on this machine")
    return devices()


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter and reporter.stats.get("skipped"):
        session.exitstatus = SKIP_STATUS
