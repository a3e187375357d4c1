# SPDX-License-Identifier: Apache-2.0
"""usage: peers.py BENCH LIBRARY    ns of an allocation, and of a pair of it and its free, over a driver that does nothing, in one run: bare, libb200opt.so
observing and pooling, and others that intercept memory, whose libraries are named by the environment (built by whoever asks, outside of
this repository); what is not there, or does not start on this driver, is skipped and said so.

    B200_PEER_TMS    torch_memory_saver's preload library (torch_memory_saver_hook_mode_preload*.so)
    B200_PEER_HAMI   HAMi-core's libvgpu.so
"""
import os
import statistics
import subprocess
import sys
import tempfile

bench, library = sys.argv[1:3]
ROUNDS = 5
TMS, HAMI = os.environ.get("B200_PEER_TMS"), os.environ.get("B200_PEER_HAMI")

# name: (library, variables, arguments)
arms = {
    "bare, runtime": ("", {}, ("runtime", "0")),
    "bare, driver": ("", {}, ("driver", "0")),
    "b200opt off, runtime": (library, {"B200OPT": "off"}, ("runtime", "0")),
    "b200opt observe, runtime": (library, {}, ("runtime", "0")),
    "b200opt pool, runtime": (library, {"B200OPT_MEMORY": "pool"}, ("runtime", "0")),
    "b200opt pool, runtime, 1000 live": (library, {"B200OPT_MEMORY": "pool"}, ("runtime", "1000")),
    "b200opt pool, driver": (library, {"B200OPT_MEMORY": "pool"}, ("driver", "0")),
    "torch_memory_saver, outside": (TMS, {}, ("runtime", "0")),
    "torch_memory_saver, in region": (TMS, {}, ("runtime", "0", "region")),
    "HAMi-core, driver": (HAMI, {}, ("driver", "0")),
    "HAMi-core, driver, 100 live": (HAMI, {}, ("driver", "100")),
    "HAMi-core, driver, 1000 live": (HAMI, {}, ("driver", "1000")),
}


def measure(preload, variables, arguments, logs):
    """None: it did not run; the text says why."""
    if preload is None:
        return None, "not named (B200_PEER_TMS, B200_PEER_HAMI)"
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env |= {"B200OPT_LOG_DIR": logs, "CUDA_DEVICE_MEMORY_SHARED_CACHE": os.path.join(logs, "hami"), **variables}
    env |= {"CUDA_REDIRECT": HAMI or ""}  # where HAMi-core looks for itself
    if preload:
        env["LD_PRELOAD"] = preload
    try:
        done = subprocess.run([bench, *arguments], env=env, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return None, "no answer within 120 s"
    if done.returncode or not done.stdout.strip():
        return None, f"it ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no message'}"
    if "only observed" in done.stderr:
        return None, done.stderr.strip().splitlines()[-1]
    alloc, pair, server = done.stdout.split()[-3:]
    if preload == HAMI and os.path.basename(server) != os.path.basename(HAMI):
        return None, "the driver's functions are not its own: it does not stand before this driver"
    return (float(alloc), float(pair)), ""


with tempfile.TemporaryDirectory() as logs:
    times, why = {name: [] for name in arms}, {}
    for _ in range(ROUNDS):
        for name, arm in arms.items():
            value, why[name] = measure(*arm, logs)
            if value is not None:
                times[name].append(value)
for name in arms:
    if times[name]:
        alloc, pair = map(statistics.median, zip(*times[name]))
        print(f"{name:34} {alloc:9.1f} ns an allocation, {pair:9.1f} ns a pair")
    else:
        print(f"{name:34} SKIP: {why[name]}")
