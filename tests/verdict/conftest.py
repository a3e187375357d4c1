# SPDX-License-Identifier: Apache-2.0
"""Options of the build: --b200opt PATH, the command under test; --long, also the jobs of other sizes."""
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def pytest_addoption(parser):
    parser.addoption("--b200opt", type=pathlib.Path, default=ROOT / "build" / "release" / "b200opt", help="the command under test")
    parser.addoption("--long", action="store_true", help="also the jobs at half and twice their size")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: too slow for every run; selected by --long")
    for name in list(os.environ):
        if name.startswith(("B200OPT", "LD_PRELOAD", "NCCL_", "TORCH_")):
            del os.environ[name]


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def command(request):
    return request.config.getoption("--b200opt")
