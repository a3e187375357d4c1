# SPDX-License-Identifier: Apache-2.0
"""What a job may observe of device memory is the same bare, with the library off, observing, and with the pool; where the pool may
differ, it differs in that and in nothing else."""
import pytest

from pool import ARMS, HERE, SKIPPED, records, run, summed

# The facts that the pool may change, and to what.
MAY_DIFFER = {
    # A freed block may still be the driver's.
    "attributes": {"type of a freed one": {"2"}},
    # A block that is handed out again is the same one to the driver.
    "buffer_id": {"new id": {"0"}},
    "nccl_deregistered": {"new id": {"0"}},
    # … with the bytes that it was first asked for.
    "address_range": {"MiB": {"18"}},
    # … and holds what was in it.
    "contents": {"old bytes": {"1"}, "zeros": {"0"}, "0xff": {"0"}},
}
# … and where PyTorch's caching allocator frees: it does not rely on the wait.
MAY_DIFFER_AS_PYTORCH = {**MAY_DIFFER, "free_is_a_wait": {"the host has it": {"0", "1"}}}
# Rows in which the cache must have served something, or the row would show nothing of it.
HITS = ("free_waits free_is_a_wait awaited other_devices peers memory_info buffer_id address_range contents wrong_frees nccl_group sync_memops tokens "
        "tokens_among_others range_handle retained_handle driver_capture nccl_deregistered").split()
MORE = {"sticky": {"B200OPT_VNODE_FAULT": "cudaMemsetAsync:3:sticky=700"}, "peers": {"B200OPT_VNODE_GPUS": "2"},
        "last_error": {"B200OPT_VNODE_MEMORY_GB": "1"}, "awaited": {"B200OPT_VNODE_MEMORY_GB": "1"},
        "capture_on_a_full_device": {"B200OPT_VNODE_MEMORY_GB": "1"}}
# The node has no end of a context, no handle of a range and none of a block of cudaMalloc; the program's own take their place.
BEHIND = {row: HERE / "libpool_contexts.so" for row in ("reset", "range_handle", "retained_handle")}
ROWS = ("alignment size_zero failure sticky first_call free_null wrong_frees free_waits free_is_a_wait awaited cross_api other_threads other_devices peers "
        "memory_info attributes buffer_id sync_memops tokens tokens_among_others range_handle retained_handle address_range ipc "
        "nccl_registered nccl_deregistered nccl_group virtual_memory other_backing stream_ordered capture capture_of_another_thread capture_on_a_full_device driver_capture "
        "captured_memory contents last_error reset primary_context forked at_exit").split()


def compare(allowed, bare, other):
    """Lines that differ and must not."""
    wrong = []
    for expected, found in zip(bare, other):
        what, _, value = found.rpartition(" ")
        if found != expected and not (expected.rpartition(" ")[0] == what and value in allowed.get(what, ())):
            wrong.append((expected, found))
    return wrong + ([(len(bare), len(other))] if len(bare) != len(other) else [])


@pytest.mark.parametrize("order", ["eager", "deferred"])
@pytest.mark.parametrize("row", ROWS)
def test_row(row, order, tmp_path):
    more = dict(MORE.get(row, {}), B200OPT_VNODE_ORDER=order)
    results = {arm: run(arm, tmp_path, "pool_table", row, behind=BEHIND.get(row), **more) for arm in ARMS}
    results["as pytorch"] = run("pool", tmp_path / "as_pytorch", "pool_table", row, behind=BEHIND.get(row), POOL_TEST_AS_PYTORCH="1", **more)
    bare = results["bare"]
    if bare.returncode == SKIPPED:
        pytest.skip("not on the virtual node")
    assert bare.returncode == 0, bare.stdout + bare.stderr
    for arm, allowed in (("off", {}), ("observe", {}), ("pool", MAY_DIFFER), ("as pytorch", MAY_DIFFER_AS_PYTORCH)):
        assert results[arm].returncode == 0, (arm, results[arm].stdout + results[arm].stderr)
        wrong = compare(allowed.get(row, {}), bare.stdout.splitlines(), results[arm].stdout.splitlines())
        assert not wrong, (arm, wrong)
        assert "b200opt:" not in results[arm].stderr, results[arm].stderr
    for folder in (tmp_path, tmp_path / "as_pytorch"):
        assert summed(folder, "pool", "hits") > 0 or row not in HITS, records(folder, "pool", "pool")
        assert summed(folder, "pool", "untracked") == summed(folder, "pool", "unreturned") == 0


SEEN_BY = {"the program": ["cudaMemsetAsync:1", "cudaStreamSynchronize:1", "cudaFree:3"], "the pool": ["cuCtxRecordEvent:2", "cuEventSynchronize:1"]}


@pytest.mark.parametrize("error", [700, 719, 710, 214])
@pytest.mark.parametrize("call", [c for calls in SEEN_BY.values() for c in calls])
def test_an_error_that_stays_ends_the_cache(call, error, tmp_path):
    """Not one for which memory is short, or a wrong argument: then the freed block is handed out again."""
    for status, new in ((error, 1), (2, 0)):
        done = run("pool", tmp_path / str(status), "pool_table", "after_error", B200OPT_VNODE_FAULT=f"{call}:{status}")
        assert "injected fault" in done.stderr, done.stderr
        assert (done.returncode, done.stdout) == (0, f"new id {new}\nfree 0\nfree 0\n"), done.stdout + done.stderr


def test_a_handle_that_is_refused_pins_nothing(tmp_path):
    """NCCL asks for one of every buffer that PyTorch registers; memory of cudaMalloc has none."""
    done = run("pool", tmp_path, "pool_table", "retained_handle")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "new id 0" and not done.stdout.startswith("status 0"), done.stdout
    assert summed(tmp_path, "pool", "pinned") == 0


def test_contents_can_be_filled(tmp_path):
    for fill, expected in (("zero", "0 1 0"), ("poison", "0 0 1")):
        done = run("pool", tmp_path / fill, "pool_table", "contents", B200OPT_MEMORY_FILL=fill)
        assert " ".join(line.split()[-1] for line in done.stdout.splitlines()) == expected, done.stderr
