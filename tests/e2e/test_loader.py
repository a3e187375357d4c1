# SPDX-License-Identifier: Apache-2.0
"""DataLoader workers, pinned memory and non-blocking copies feed the job what it would have made itself."""
import pytest

from matrix import LOADER_PLAIN, LOADERS


@pytest.mark.parametrize("job", LOADERS, ids=lambda job: job.name)
def test_workers_and_pinned_memory_change_no_loss(lab, job):
    assert lab.good(job, "observe").result == lab.good(LOADER_PLAIN, "bare").result
