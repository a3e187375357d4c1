# SPDX-License-Identifier: Apache-2.0
"""What programs do to a library that lives in them: each scenario of hostile.c ends as it does without the library."""
import os
import subprocess
import sys

import pytest

from shim import ARMS, HERE, LIBRARY, environment, owners, read_logs, run

HOSTILE = str(HERE / "shim_hostile")


def three(scenario, tmp_path, *arguments, output=True):
    results = {arm: run([HOSTILE, scenario, *arguments], environment(arm, tmp_path / arm)) for arm in ARMS}
    for arm in ("off", "observed"):
        assert results[arm].returncode == results["bare"].returncode, (arm, results[arm].stderr)
        assert not output or results[arm].stdout == results["bare"].stdout, arm
    return results["bare"], read_logs(tmp_path / "observed")


def test_descriptors_that_the_job_takes_stay_its_own(tmp_path):
    data = tmp_path / "data"
    for arm in ARMS:
        result = run([HOSTILE, "descriptors", str(data)], environment(arm, tmp_path / arm))
        assert (result.returncode, result.stdout) == (0, "child lost descriptors: 0\n"), arm
        assert data.read_bytes() == b"0123456789", arm


def test_a_handler_may_print_at_any_moment(tmp_path):
    bare, logs = three("print", tmp_path, output=False)
    assert bare.returncode == 0
    assert {r["loss"] for r in logs[0] if r["t"] == "loss"} <= {1.5, 2.5} and logs[0][-1]["t"] == "end"


@pytest.mark.parametrize("attempt", range(5))
def test_a_handler_may_exit_at_any_moment(attempt, tmp_path):
    bare, _ = three("exit", tmp_path)
    assert bare.returncode == 5


def test_no_byte_is_lost_when_addresses_change_hands(tmp_path):
    _, logs = three("threads", tmp_path)
    held = owners(logs[0])["pytorch"]
    assert (held["current"], held["allocs"], held["frees"]) == (16 * 2 << 20, 16 * 301, 16 * 300)


def test_first_use_on_a_small_stack(tmp_path):
    bare, logs = three("stack", tmp_path)
    assert bare.returncode == 0 and logs[0][-1]["t"] == "end"


def test_write_stays_a_cancellation_point(tmp_path):
    bare, _ = three("cancel", tmp_path)
    assert bare.returncode == 0


def test_progress_bars_and_a_line_without_an_end(tmp_path):
    _, logs = three("progress", tmp_path)
    losses = [(r["step"], r["loss"]) for r in logs[0] if r["t"] == "loss"]
    assert [(s, s + 0.25) for s in range(1, 51)] == [x for x in losses if x[1] % 1 == 0.25]
    assert (51, 0.125) in losses


def test_a_limit_on_file_sizes_costs_the_log_only(tmp_path):
    bare, _ = three("limit", tmp_path)
    assert bare.returncode == 0


def test_exec_begins_another_log(tmp_path):
    _, logs = three("exec", tmp_path)
    assert len(logs) == 2 and all(sum(r["allocs"] for r in log if r["t"] == "alloc") in (0, 1) for log in logs)
    assert [log[-1]["t"] == "end" for log in logs].count(True) == 1


def test_a_full_disk_leaves_no_end(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]).returncode != 0:
        pytest.skip("needs to mount a file system of 8 KiB")
    try:
        result = run([HOSTILE, "print"], environment("observed", folder))
        assert result.returncode == 0
        text = next(folder.rglob("*.jsonl")).read_text()
        assert text and '"t":"end"' not in text
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_other_preloads_stay_in_the_chain(tmp_path):
    source, other = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n"
                      "ssize_t write(int fd, const void *b, size_t n) {\n"
                      "  ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, \"write\");\n"
                      "  if (fd == 1) next(2, \"seen\\n\", 5);\n  return next(fd, b, n);\n}\n")
    subprocess.run([os.environ.get("B200_CC", "cc"), "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
    for libraries in ([LIBRARY, other], [other, LIBRARY]):
        for switch in ("on", "off"):
            env = environment("bare", tmp_path / "logs", libraries, B200OPT=switch)
            result = run([sys.executable, "-c", "import os; os.write(1, b'x')"], env)
            assert (result.stdout, result.stderr) == ("x", "seen\n"), (libraries, switch)
