#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: resources.py IMAGE    registers, shared memory and occupancy of each kernel and architecture in the GPU image

Fails when a kernel spills or does not load or store 128 bits at once where it should. Status 77 without an image or without cuobjdump
(the one that PyTorch's Triton brings is used, else that of PATH)."""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

THREADS = 256
# By compute capability: registers, threads and shared memory (bytes) of a multiprocessor; CUDA's programming guide, compute capabilities.
LIMITS = {
    89: (65536, 1536, 102400),
    90: (65536, 2048, 233472),
    100: (65536, 2048, 233472),
    103: (65536, 2048, 233472),
    120: (65536, 1536, 102400),
}


def tool(name):
    folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / "triton/backends/nvidia/bin" / name
    return str(folder) if folder.exists() else shutil.which(name)


def resources(cuobjdump, image):
    """{(architecture, kernel): {"REG": …, "STACK": …, …}}"""
    text = subprocess.run([cuobjdump, "--dump-resource-usage", image], check=True, stdout=subprocess.PIPE, text=True).stdout
    found, architecture = {}, None
    for line in text.splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\s*Function (\w+):", line):
            kernel = match[1]
        elif "REG:" in line:
            found[architecture, kernel] = {name: int(value) for name, value in re.findall(r"(\w+)(?:\[0\])?:(\d+)", line)}
    return found


def wide_accesses(cuobjdump, image):
    """{(architecture, kernel): Counter of 128-bit loads and stores}"""
    text = subprocess.run([cuobjdump, "-sass", image], check=True, stdout=subprocess.PIPE, text=True).stdout
    found, architecture = collections.defaultdict(collections.Counter), None
    for line in text.splitlines():
        if match := re.search(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.search(r"Function : (\w+)", line):
            kernel = match[1]
        elif match := re.search(r"\b(LDG|STG)\.\S*128\b", line):
            found[architecture, kernel][match[1]] += 1
    return found


def occupancy(architecture, used):
    registers, threads, shared = LIMITS[architecture]
    of_warp = (used["REG"] * 32 + 255) // 256 * 256
    of_block = used["SHARED"] + (1024 if architecture < 90 else 0)  # the driver's part, which newer machine code includes
    blocks = min(registers // (of_warp * (THREADS // 32)), threads // THREADS, shared // of_block)
    return blocks * THREADS / threads


def main():
    image, cuobjdump = sys.argv[1], tool("cuobjdump")
    if not pathlib.Path(image).is_file() or not cuobjdump:
        print("skipped: no GPU image (nvcc was not found)" if cuobjdump else "skipped: no cuobjdump")
        return 77
    wrong = []
    wide = wide_accesses(cuobjdump, image)
    print(f"{pathlib.Path(image).stat().st_size} bytes of image")
    print(f"{'kernel':28} {'sm':>4} {'registers':>9} {'shared':>7} {'spilled':>7} {'occupancy':>9} {'LDG.128':>8} {'STG.128':>8}")
    used_by_kernel = resources(cuobjdump, image)
    for (architecture, kernel), used in sorted(used_by_kernel.items()):
        accesses = wide[architecture, kernel]
        spilled = used["STACK"] + used["LOCAL"]
        print(f"{kernel:28} {architecture:4} {used['REG']:9} {used['SHARED']:7} {spilled:7} {occupancy(architecture, used):9.0%} "
              f"{accesses['LDG']:8} {accesses['STG']:8}")
        # A thread loads 4 lines of 16 elements and stores them; the reductions store none.
        loads = 16 if kernel.endswith("f32") or "_f32_" in kernel else 8
        if "_error_" in kernel:
            loads //= 4
        stores = 0 if "_amax_" in kernel or "_error_" in kernel else 4
        if spilled:
            wrong.append(f"{kernel} (sm_{architecture}) spills {spilled} bytes")
        if accesses["LDG"] < loads or accesses["STG"] < stores:
            wrong.append(f"{kernel} (sm_{architecture}): 128 bits: {accesses['LDG']} loads, {accesses['STG']} stores, not {loads}, {stores}")
    if len(used_by_kernel) % 21 or not used_by_kernel:
        wrong.append(f"{len(used_by_kernel)} kernels in the image, not 21 for each architecture")
    print("\n".join(wrong) or f"no spills in {len(used_by_kernel)} kernels")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
