# SPDX-License-Identifier: Apache-2.0
"""A job that goes on from a distributed checkpoint computes what the saved job went on to compute, bit for bit."""
import pytest

from matrix import RESUME, SAVE, SAVED_STEP


@pytest.mark.parametrize("arm", ["bare", "observe"])
def test_resumed_job_continues_bit_identically(lab, arm):
    saved, resumed = lab.good(SAVE, arm), lab.good(RESUME, arm)
    for figure in ("losses", "grad_norms"):
        assert resumed.result[figure] == saved.result[figure][SAVED_STEP + 1 :]
        assert resumed.result[figure], "nothing was left to compute"
