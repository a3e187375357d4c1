# SPDX-License-Identifier: Apache-2.0
"""Curves of the demo job whose true relation is known: what the thresholds of the comparison are re-checked on.

    python tests/compare/own_curves.py --b200opt build/release/b200opt --out DIR [--steps 600] [--seeds 3]

Two ranks, FSDP2. DIR gets one file a run, KIND_SEED.csv (step, loss, grad_norm); runs found there are not made again.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRAIN, EMULATION, BROKEN = ROOT / "tools/demo_job/train.py", HERE.parent / "e2e/emulation.py", HERE / "broken_recipes.py"
MODEL = ["--mode", "fsdp2", "--width", "128", "--layers", "2", "--seq", "128", "--batch", "4"]
LR = 1e-3

# kind: (precision on the node, or cpu; program and its own options; options of the training, given the seed; of how many seeds)
KINDS = {
    "bf16": ("bf16", [TRAIN], lambda seed: [], 9),
    "bf16_perm": ("bf16", [EMULATION, "--shuffle", "1"], lambda seed: [], 9),
    "fp8": ("fp8", [TRAIN], lambda seed: [], 9),
    "mxfp8": ("mxfp8", [TRAIN], lambda seed: [], 9),
    "bf16_lr0.8": ("bf16", [TRAIN], lambda seed: ["--lr", str(0.8 * LR)], 9),
    "bf16_data1": ("bf16", [TRAIN], lambda seed: ["--data-seed", str(100 + seed)], 9),
    "bf16_init1": ("bf16", [TRAIN], lambda seed: ["--seed", str(100 + seed), "--data-seed", str(seed)], 9),
    "neg_lr100": ("bf16", [TRAIN], lambda seed: ["--lr", str(100 * LR)], 1),
    "neg_nosat": ("cpu", [BROKEN, "nosat"], lambda seed: [], 1),
    "neg_scale1": ("cpu", [BROKEN, "scale1"], lambda seed: [], 1),
    "mxfp8_floor": ("cpu", [BROKEN, "floor"], lambda seed: [], 1),
}


def made(args, kind, seed):
    precision, program, options, _ = KINDS[kind]
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")} | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MKL_CBWR": "AUTO"}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        job = [str(pathlib.Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", *map(str, program), *MODEL, "--lr", str(LR), "--seed", str(seed),
               "--steps", str(args.steps), *options(seed), "--out", str(out)]
        if precision == "cpu":
            command = [*job, "--device", "cpu"]
        else:
            narrow = [] if precision == "bf16" else [f"B200OPT_PRECISION={precision}", "B200OPT_STRATEGY=always"]
            command = [str(args.b200opt), "dryrun", "--gpus", "2", "--log", folder, *narrow, "--", *job]
        ended = subprocess.run(command, env=env, capture_output=True, text=True)
        if out.exists():
            result = json.loads(out.read_text())
            return [(step, float.fromhex(loss), float.fromhex(norm)) for step, (loss, norm) in enumerate(zip(result["losses"], result["grad_norms"]), 1)]
        if "the loss is nan" in ended.stderr or "the loss is inf" in ended.stderr:  # train.py stops there
            printed = [line.split() for line in ended.stdout.splitlines() if line.startswith("step ") and " loss " in line]
            return [(int(words[1]) + 1, float(words[3]), float(words[5])) for words in printed]
        sys.exit(f"own_curves.py: {kind} {seed} ended with {ended.returncode}\n{ended.stderr[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--b200opt", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(args.seeds):
        for kind, (*_, seeds) in KINDS.items():
            path = args.out / f"{kind}_{seed}.csv"
            if seed < seeds and not path.exists():
                rows = made(args, kind, seed)
                path.write_text("step,loss,grad_norm\n" + "".join(f"{step},{loss!r},{norm!r}\n" for step, loss, norm in rows))
                print(f"{kind}_{seed}: {len(rows)} steps, last loss {rows[-1][1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
