# SPDX-License-Identifier: Apache-2.0
"""`b200opt ab` on the virtual node with the demo's job: equal arms are equal to the bit, MXFP8 stays within a percent and its GEMMs, which are
too small to gain, make the modelled step longer; scales that are rounded down show in the loss."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

COMMAND = os.environ["B200_COMMAND"]
TRAIN = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_job" / "train.py"
JOB = (sys.executable, TRAIN, "--mode", "single", "--layers", "2", "--width", "128", "--seq", "64", "--steps", "150", "--text-mb", "0.3")
CONVERT = ("B200OPT_PRECISION=mxfp8", "B200OPT_STRATEGY=always", "B200OPT_GUARD=off", "B200OPT_AUDIT_EVERY=100")


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("B200OPT", "LD_PRELOAD", "TORCH_"))}


def run(*words, status):
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four runs: BF16 twice, and two ways to round the scales of MXFP8."""
    out = tmp_path_factory.mktemp("ab")
    native = "B200OPT_PRECISION=native"
    run("ab", "--dryrun", "--gpus", "1", "--out", out / "same", "--arm", "one:", native, "--arm", "two:", native, "--", *JOB, status=0)
    run("ab", "--dryrun", "--gpus", "1", "--out", out / "other", *CONVERT, "--margin", "5", "--arm", "rceil:", "--arm", "floor:", "B200OPT_MX_ROUND=floor", "--", *JOB, status=0)
    return out


def compare(a, b, *options, status):
    return json.loads(run("compare", a, b, "--json", "-", *options, status=status).stdout)


def test_equal_arms_are_equal_to_the_bit(folders):
    data = json.loads((folders / "same" / "compare.json").read_text())
    assert data["verdict"]["name"] == "EQUIVALENT" and data["loss"]["identical"]
    pair = data["loss"]["pairs"][0]
    assert pair["common"] == 150 and pair["gap_percent"] == 0 and pair["largest_gap_percent"] in (0, None)
    clock = data["throughput"]["clocks"][0]
    assert clock["clock"] == "modelled" and clock["verdict"] == "NO DIFFERENCE" and abs(clock["ratio"] - 1) < 1e-3
    assert [row["name"] for row in data["environment"] if row["differs"] and not row["of_the_run"]] == []


def test_mxfp8_is_within_a_percent_and_slower_here(folders):
    data = compare(folders / "same" / "one", folders / "other" / "rceil", status=0)
    assert data["verdict"]["name"] == "EQUIVALENT" and data["loss"]["short_run"] and not data["loss"]["identical"]
    assert data["gemms"]["candidate"]["converted"] == 1 and data["gemms"]["baseline"]["converted"] == 0
    assert any(0.01 < row["candidate"]["audited_error"] < 0.06 for row in data["gemms"]["rows"] if row["candidate"]["audited_error"] is not None)
    clock = data["throughput"]["clocks"][0]
    assert clock["clock"] == "modelled" and clock["verdict"] == "SLOWER"
    assert any("too small to earn back" in line for line in data["verdict"]["also"])
    split = data["throughput"]["split"]
    assert split["difference"]["gemm_s"] > 0.8 * split["difference"]["total_s"] > 0, "what the step takes longer is its GEMMs"


def test_scales_rounded_down_show_in_the_loss(folders):
    data = compare(folders / "same" / "one", folders / "other" / "floor", "--margin", "0.2", status=1)
    assert data["verdict"]["name"] == "WORSE"
    good = compare(folders / "same" / "one", folders / "other" / "rceil", status=0)
    assert data["loss"]["gap_percent"] > good["loss"]["gap_percent"] + 0.15
    assert {"B200OPT_MX_ROUND"} < {row["name"] for row in data["environment"] if row["differs"]}
