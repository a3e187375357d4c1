# SPDX-License-Identifier: Apache-2.0
"""Libraries with static runtimes, which find the driver by cuGetProcAddress: after every call the ledger is the node's own count by owner."""
import json
import os
import pathlib
import subprocess

import pytest
from count import Ledger, read

BUILD = pathlib.Path(os.environ["B200_BUILD"])
HERE = BUILD / "tests" / "ledger"
MODULES = [HERE / f"lib{name}.so" for name in ("nccl_static", "cublas_static", "cublasLt_static", "torch_static", "cudart_static", "plain")]
LONG = "B200_LONG" in os.environ
OPERATIONS = 4000 if LONG else 400


@pytest.mark.parametrize("seed", range(20 if LONG else 3))
@pytest.mark.parametrize("order", ["eager", "deferred"])
def test_owner_of_every_call(tmp_path, seed, order):
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")}
    env |= {"LD_PRELOAD": str(BUILD / "libb200opt.so"), "B200OPT_LOG_DIR": str(tmp_path), "B200OPT_MEMORY_TRACE": "on"}
    env |= {"B200OPT_VNODE_SESSION": f"ledger-{os.getpid()}-{seed}-{order}", "B200OPT_VNODE_ORDER": order, "B200OPT_VNODE_GPUS": "1"}
    done = subprocess.run([HERE / "modules", str(OPERATIONS), str(seed), *MODULES], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    stamps = [json.loads(line) for line in done.stdout.splitlines()]
    (records,) = [r for r in map(read, tmp_path.glob("**/*.jsonl")) if r[0]["producer"].startswith("b200opt")]
    assert len(stamps) == OPERATIONS + 1 and not [r for r in records if r["t"] == "drop"]
    ledger = Ledger(records)
    for number, stamp in enumerate(stamps):
        ledger.until(stamp["t_ns"])
        counted = {owner: [ledger.held[owner], ledger.peak[owner]] for owner in stamp["owners"]}
        assert counted == stamp["owners"], f"operation {number}"
    assert sum(ledger.held.values()) == 0 and not ledger.handles and not ledger.mappings
    assert all(ledger.peak[owner] for owner in ("pytorch", "nccl", "cublas", "other"))
