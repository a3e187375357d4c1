# SPDX-License-Identifier: Apache-2.0
"""Rules of the source tree: tables and the files made from them agree, dependencies go one way, documents name what exists."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = {".c", ".h", ".def", ".S", ".py", ".sh", ".cpp", ".cmake", ".inc", ".cu"}


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def sources(folder="", suffixes=(".c", ".h")):
    return [p for p in tracked() if p.is_relative_to(ROOT / folder) and p.suffix in suffixes]


def generated(mode):
    return subprocess.run([os.environ["B200_GEN_ENV"], mode], capture_output=True, text=True, check=True).stdout


def test_env_example_is_made_from_the_table():
    assert (ROOT / "env.example").read_text() == generated("example")


def test_readme_has_the_table_of_variables():
    text = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- variables -->\n(.*)<!-- /variables -->", text, re.S).group(1)
    assert table.strip() == generated("markdown").strip()


def test_every_source_states_its_licence():
    missing = [str(p.relative_to(ROOT)) for p in tracked()
               if (p.suffix in SOURCES or p.name == "CMakeLists.txt") and "SPDX-License-Identifier: Apache-2.0" not in p.read_text()[:300]]
    assert missing == []


@pytest.mark.parametrize("folder", ["policy", "memory"])
def test_no_vendor_header_beyond_the_edge(folder):
    vendor = re.compile(r'#include [<"](cuda|cublas|nccl|library_types|driver_types|nvml)')
    assert [str(p) for p in sources(folder) if vendor.search(p.read_text())] == []


def test_only_the_edge_calls_real_functions():
    users = [p for p in sources() if "interpose/real.h" in p.read_text() and p.parent != ROOT / "interpose" and "tests" not in p.parts]
    assert users == []


@pytest.mark.parametrize("folders, owner", [
    (("interpose", "policy", "memory"), "policy/config.c"),
    (("tools/vnode",), "tools/vnode/core/config.c"),
])
def test_the_environment_is_read_in_one_file(folders, owner):
    pattern = re.compile(r"\b(getenv|secure_getenv|environ)\b\s*[(\[;,)]")
    found = {str(p.relative_to(ROOT)) for folder in folders for p in sources(folder) if pattern.search(without_comments(p))}
    assert found <= {owner}


def without_comments(path):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)


def test_the_tools_do_not_use_the_shim():
    linked = (ROOT / "tools" / "CMakeLists.txt").read_text()
    assert "b200opt_preload" not in re.sub(r"#.*", "", linked)


def test_architecture_names_what_exists():
    everything = "\n".join(p.read_text(errors="replace") for p in tracked() if p.suffix in SOURCES or p.name == "CMakeLists.txt")
    names = re.findall(r"`([^`\n]+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(names) > 30
    for name in names:
        plain = name.removeprefix("struct ").split("=")[0]
        generated_name = re.sub(r"^(first|observe)_", "", plain)
        known = (ROOT / plain).exists() or re.search(rf"\b{re.escape(generated_name)}\b", everything)
        assert known, name


def test_no_path_of_a_machine():
    pattern = re.compile(r"(?<![\w.])/(work|root|home|Users)/\w")
    found = [f"{p.relative_to(ROOT)}:{i}" for p in tracked() if p.suffix in SOURCES | {".md", ".txt", ".json", ".csv"} or p.name == "CMakeLists.txt"
             for i, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
             if pattern.search(line) and p != pathlib.Path(__file__).resolve()]
    assert found == []


def test_nothing_large_is_tracked():
    assert [str(p) for p in tracked() if p.stat().st_size > 1 << 20] == []


def test_shell_scripts_are_clean():
    checker = shutil.which("shellcheck")
    assert checker, "shellcheck is installed by tools/setup --tests"
    scripts = [str(p) for p in tracked() if re.match(r"#!/bin/(ba)?sh", p.read_text(errors="replace")[:20])]
    assert scripts
    result = subprocess.run([checker, "--severity=warning", "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_c_sources_are_formatted():
    formatter = shutil.which("clang-format")
    assert formatter, "clang-format is installed by tools/setup --tests"
    version = subprocess.run([formatter, "--version"], capture_output=True, text=True, check=True).stdout
    if " 14." not in version:
        pytest.skip(f"formatted with clang-format 14; here is {version.strip()}")
    files = [str(p) for p in sources(suffixes=(".c", ".h"))]
    result = subprocess.run([formatter, "--dry-run", "--Werror", *files], capture_output=True, text=True)
    assert result.returncode == 0, "\n".join(result.stderr.splitlines()[:20])
