# SPDX-License-Identifier: Apache-2.0
"""The tests run in a process that has the stand-ins preloaded (see `run`)."""
import os

import pytest
import torch


def pytest_configure(config):
    if "libb200vnode" not in os.environ.get("LD_PRELOAD", ""):
        pytest.exit("start the tests by tests/aten/run: the stand-ins are not preloaded", returncode=2)
    if not torch.cuda.is_available():
        pytest.exit("torch sees no device of the virtual node", returncode=2)
    torch.manual_seed(1234)  # inputs that the test files make when they are read


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1234)
