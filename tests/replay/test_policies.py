# SPDX-License-Identifier: Apache-2.0
"""Each policy on small streams made by hand, with every figure known; and on generated ones, by what must always hold."""
import pytest
from generate import csv_text, events

MIB = 1 << 20
GIB = 1 << 30
CALLS = ("malloc", "free", "create", "release", "map", "unmap", "access")


def stream(*steps):
    """'a 64' allocates 64 MiB under the name a; 'a 64 7' on stream 7; '-a' frees. Sizes may have a unit B."""
    listed, live = [], {}
    for step in steps:
        if step.startswith("-"):
            listed.append(("free", *live.pop(step[1:])))
            continue
        name, size, *where = step.split()
        amount = int(size[:-1]) if size.endswith("B") else int(float(size) * MIB)
        live[name] = (0x7f0000000000 + len(listed) * GIB * 64, amount, int(where[0]) if where else 0)
        listed.append(("allocate", *live[name]))
    return csv_text(listed)


def figures(replay, policy, steps, limit_mib=None):
    path = replay.write("stream.csv", stream(*steps))
    limit = ("--gpu-memory", repr(limit_mib / 1024)) if limit_mib else ()
    return replay.policies(path, "--policy", policy, *limit)[policy]


def calls(**expected):
    return {name: expected.get(name, 0) for name in CALLS}


def test_cudamalloc_asks_the_driver_each_time(replay):
    found = figures(replay, "cudamalloc", ["a 100", "b 200", "-a", "c 50", "-b"])
    assert found["calls"] == calls(malloc=3, free=2)
    assert (found["peak_live"], found["peak_reserved"], found["live"]) == (300 * MIB, 300 * MIB, 50 * MIB)
    assert (found["hits"], found["failures"], found["retries"], found["fragmentation"]) == (0, 0, 0, 0)
    assert found["stall_ns"] == 5 * 100_000


def test_cudamalloc_on_a_full_device(replay):
    found = figures(replay, "cudamalloc", ["a 60", "b 50", "c 40", "-b", "-a", "d 50"], limit_mib=100)
    assert found["calls"] == calls(malloc=4, free=1)  # b never was
    assert (found["failures"], found["retries"], found["peak_reserved"], found["live"]) == (1, 0, 100 * MIB, 90 * MIB)


@pytest.mark.parametrize("kept, asked, hit", [
    ("64", "64", True), ("64", "63.9", True), ("64", "62", False), ("63", "62.1", True),  # in as many pages of 2 MiB
    ("10485760B", "8388609B", True), ("10485760B", "8388608B", False), ("64", "65", False),
    ("2", "2", True), ("2097151B", "2097151B", False), ("2", "1.9", False),             # small ones are not kept
])
def test_cache_reuses_whole_blocks_of_as_many_pages(replay, kept, asked, hit):
    found = figures(replay, "cache", [f"a {kept}", "-a", f"b {asked} 5"])  # whatever the stream
    assert found["hits"] == int(hit)
    bounded = not hit and asked != "1.9"  # a miss that could be kept later makes what is idle go, beyond the job's peak
    assert found["calls"] == calls(malloc=2 - hit, free=int(bounded))


def test_cache_takes_the_best_fit(replay):
    found = figures(replay, "cache", ["a 66", "b 64", "-a", "-b", "c 63", "d 65"])
    assert (found["hits"], found["peak_reserved"], found["calls"]) == (2, 130 * MIB, calls(malloc=2))


def test_cache_does_not_hand_out_what_is_in_use(replay):
    found = figures(replay, "cache", ["a 64", "-a", "b 64", "c 64"])
    assert (found["hits"], found["peak_reserved"]) == (1, 128 * MIB)


def test_cache_stays_within_the_peak_of_the_job(replay):
    found = figures(replay, "cache", ["a 64", "b 10", "-a", "-b", "c 50", "d 60", "-c", "e 99"], limit_mib=100)
    # c: of 74 MiB that were live at most 24 are left for what is idle: a goes, the older one; d: b goes too, and it does not fit
    assert found["calls"] == calls(malloc=5, free=3)
    assert (found["retries"], found["failures"], found["reserved"]) == (0, 1, 99 * MIB)


def test_cache_gives_back_what_is_idle_on_a_full_device(replay):
    found = figures(replay, "cache", ["a 96", "-a", "b 1.9", "c 1.9", "d 1.9"], limit_mib=100)
    # small ones pass by the cache; the third is refused, a is given back, and it is asked for again
    assert found["calls"] == calls(malloc=5, free=1)
    assert (found["retries"], found["failures"]) == (1, 0)


def test_fragmentation_is_of_the_moment_of_the_peak(replay):
    found = figures(replay, "cache", ["a 64", "b 36", "-a", "c 63", "d 8"])
    assert (found["peak_reserved"], found["live_at_peak"], found["peak_live"]) == (108 * MIB, 107 * MIB, 107 * MIB)
    assert found["fragmentation"] == pytest.approx(1 / 108)


def test_native_packs_small_requests_into_segments_of_2_mib(replay):
    found = figures(replay, "native", ["a 1000B", "b 1", "c 1047552B", "d 512B", "e 1"])
    # 1024 B and 1 MiB and 1023 KiB fill the first segment; d opens the second, in which e has room
    assert (found["peak_reserved"], found["calls"], found["hits"]) == (4 * MIB, calls(malloc=2), 3)


def test_native_segments_of_large_requests(replay):
    found = figures(replay, "native", ["a 1048577B", "b 9.5", "c 9", "d 10", "e 11", "f 12"])
    # 20 MiB for a, b and what c lacks of it: 20 MiB more; then 10, and 12 for e, and 12 for f
    assert (found["peak_reserved"], found["calls"]) == ((20 + 10 + 12 + 12) * MIB, calls(malloc=4))


def test_native_splits_only_what_leaves_more_than_1_mib(replay):
    found = figures(replay, "native", ["a 20", "-a", "b 19", "-b", "c 18.5", "d 1.4", "-c", "-d", "e 20"])
    # b takes all of the segment; of c 1.5 MiB are left over, where d goes; e has the whole again
    assert (found["peak_reserved"], found["hits"]) == (20 * MIB, 4)


def test_native_blocks_stay_with_their_stream(replay):
    found = figures(replay, "native", ["a 20", "-a", "b 20 7", "c 20"])
    assert (found["peak_reserved"], found["hits"]) == (40 * MIB, 1)


def test_native_retries_on_a_full_device(replay):
    found = figures(replay, "native", ["a 40", "b 1000B", "-a", "c 50", "d 20", "e 99"], limit_mib=64)
    # c: a's segment is given back, b's is in use; d: 52 + 20 do not fit, and the device was asked twice
    assert found["calls"] == calls(malloc=2 + 2 + 2 + 2, free=1)
    assert (found["retries"], found["failures"], found["reserved"]) == (3, 2, 52 * MIB)


def test_expandable_maps_pages_at_the_end(replay):
    found = figures(replay, "expandable", ["a 1000B", "b 30", "c 5", "-b", "d 31"])
    # one small page; two large ones, in which c finds room; b's 30 MiB are too few for d: two more, after the 5 MiB left
    assert found["calls"] == calls(create=1 + 2 + 2, map=1 + 2 + 2, access=3)
    assert (found["peak_reserved"], found["hits"]) == (82 * MIB, 1)


def test_expandable_grows_a_free_block(replay):
    found = figures(replay, "expandable", ["a 30", "b 10", "-a", "-b", "c 60"])
    assert found["calls"] == calls(create=3, map=3, access=2)
    assert (found["peak_reserved"], found["peak_live"], found["fragmentation"]) == (60 * MIB, 60 * MIB, 0)


def test_expandable_has_a_segment_for_each_stream_and_pool(replay):
    found = figures(replay, "expandable", ["a 20", "-a", "b 20 7", "c 1 7", "d 1.5 7"])
    assert found["calls"] == calls(create=4, map=4, access=4)
    assert found["peak_reserved"] == (20 + 20 + 2 + 20) * MIB


def test_expandable_trims_whole_pages_on_a_full_device(replay):
    found = figures(replay, "expandable", ["a 30", "b 30", "c 20", "-a", "d 60 7"], limit_mib=120)
    # 80 MiB are mapped. d wants three pages: two fit, the third is refused, both are released. Of a's 30 MiB one whole page
    # is unmapped, which makes room.
    assert found["calls"] == calls(create=4 + 3 + 3, release=2 + 1, map=4 + 3, unmap=1, access=4)
    assert (found["retries"], found["failures"], found["reserved"], found["peak_reserved"]) == (1, 0, 120 * MIB, 120 * MIB)


def test_expandable_maps_a_hole_anew(replay):
    found = figures(replay, "expandable", ["a 40", "b 20", "-a", "c 80 7", "-c", "d 40", "e 1.5"], limit_mib=100)
    # c has a's pages unmapped; d has c's, and lies where a lay
    assert (found["retries"], found["failures"], found["reserved"]) == (2, 0, 80 * MIB)


@pytest.mark.parametrize("policy", ["native", "expandable"])
def test_a_request_beyond_the_device(replay, policy):
    found = figures(replay, policy, ["a 1", "b 200", "-a"], limit_mib=100)
    assert (found["failures"], found["retries"], found["live"]) == (1, 1, 0)


# ---- generated streams

def sums(listed):
    live, peak, sizes = 0, 0, {}
    for action, pointer, size, _ in listed:
        if action == "allocate":
            sizes[pointer] = size
            live += size
            peak = max(peak, live)
        else:
            live -= sizes.pop(pointer)
    return live, peak, sum(e[0] == "allocate" for e in listed), sum(e[0] == "free" for e in listed), sizes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit_gib", [None, 5, 2])
def test_generated_streams(replay, seed, limit_gib):
    listed = events(seed, steps=3, layers=12)
    path = replay.write("fsdp.csv", csv_text(listed))
    limit = ("--gpu-memory", limit_gib) if limit_gib else ()
    found = replay.policies(path, *limit)
    live, peak, allocs, frees, _ = sums(listed)
    recorded = found["recorded"]
    assert (recorded["live"], recorded["peak_live"], recorded["peak_reserved"]) == (live, peak, peak)
    assert recorded["calls"] == calls(malloc=allocs, free=frees)
    for name, row in found.items():
        assert row["requests"] == allocs
        assert row["peak_live"] <= row["peak_reserved"] and row["live"] <= row["reserved"], name
        assert row["live_at_peak"] <= row["peak_live"] and 0 <= row["fragmentation"] < 1, name
        if name == "recorded":
            continue
        if limit_gib:
            assert row["peak_reserved"] <= limit_gib * GIB, name
        else:
            assert (row["peak_live"], row["live"], row["failures"], row["retries"]) == (peak, live, 0, 0), name
        used = row["calls"]
        assert row["hits"] + row["failures"] <= allocs, name
        assert used["map"] <= used["create"] and used["unmap"] <= used["map"] and used["free"] <= used["malloc"], name
    assert limit_gib != 2 or any(row["retries"] for row in found.values())  # the device does get full


def test_memory_at_the_end_is_what_was_not_freed(replay):
    listed = events(7, steps=2, layers=4)
    left = sums(listed)[4]
    everything = listed + [("free", pointer, size, 0) for pointer, size in left.items()]
    found = replay.policies(replay.write("all.csv", csv_text(everything)))
    assert {row["live"] for row in found.values()} == {0}
    assert found["cudamalloc"]["reserved"] == found["recorded"]["reserved"] == 0


def test_memory_does_not_grow_with_the_stream(replay):
    """A million events, in which at most some 150 blocks are live, with 16 MiB for data."""
    import resource
    import subprocess
    from conftest import COMMAND
    path = replay.write("million.csv", csv_text(events(1, 100_000)))
    lines = path.read_bytes().split(b"\n", 1)
    ended = sums(events(1, 100_000))[4]
    body = lines[1] + csv_text([("free", p, s, 0) for p, s in ended.items()]).split("\n", 1)[1].encode()
    path.write_bytes(lines[0] + b"\n" + body * 10)

    def bounded():
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 20, 16 << 20))
    done = subprocess.run([COMMAND, "replay", "--json", path], capture_output=True, preexec_fn=bounded, timeout=300)
    assert done.returncode == 0, done.stderr
