# SPDX-License-Identifier: Apache-2.0
"""The demo job's loss in BF16, FP8, MXFP8 and what `auto` chooses, over many steps, against BF16 and against the emulation of each.

    python tests/e2e/curves.py --b200opt build/release/b200opt --out DIR [--steps 600] [--seeds 2] [--only ARM]

Two ranks, FSDP2, every GEMM converted that can be. Runs found in DIR/curves.json are not made again. Writes DIR/table.txt and
DIR/table.json. The exit status is 1 when an arm is not EQUIVALENT to BF16 and to its emulation within 1 %, or further from its emulation
than the job is from itself: the floor is that of runs in the same precision that differ in the order of their sums only (ab.py).
"""
import argparse
import collections
import json
import pathlib
import sys
import tempfile

import ab
from conftest import Lab
from matrix import emulated, shuffled, train

MODEL = ("--mode", "fsdp2", "--width", 128, "--layers", 2, "--seq", 128, "--batch", 4, "--lr", 1e-3)
RECIPES = ("fp8", "mxfp8")
LEAST_SHARE = 0.9
MARGIN = 1.0  # percent
LIMIT_S = 3600


def arms(job, seed):
    """{name: (job, arm of conftest)} in the order in which they are worth having."""
    shuffles = (1, 2) if seed == 0 else (1,)
    rows = {"bf16": (job, "observe")}
    for recipe in RECIPES:
        rows[recipe] = (job, recipe)
        rows[f"{recipe} emulated"] = (emulated(job, recipe), "cpu")
    rows["auto"] = (job, "auto")
    for precision in ("bf16", *RECIPES):
        for number in shuffles:
            rows[f"{precision} shuffled {number}"] = (shuffled(job, number), {"bf16": "observe"}.get(precision, precision))
    return rows


def flops_by_plan(run):
    sums = collections.Counter()
    for records in run.logs().values():
        for r in records:
            if r["t"] == "gemm":
                sums[r["plan"]] += r["flops"]
    return dict(sums)


def make(args, store):
    lab = Lab(args.b200opt.resolve(), pathlib.Path(tempfile.mkdtemp(prefix="curves-")))
    for seed in range(args.seeds):
        job = train(f"curves-{seed}", *MODEL, "--seed", seed, steps=args.steps, limit_s=LIMIT_S)
        for name, (variant, arm) in arms(job, seed).items():
            key = f"{seed} {name}"
            if key in store or (args.only and name not in args.only):
                continue
            run = lab.good(variant, arm)
            store[key] = {**run.result, "wall_s": run.wall_s, "flops": flops_by_plan(run)}
            (args.out / "curves.json").write_text(json.dumps(store))
            print(f"{key}: {run.result['steps_per_s']:.2f} steps/s, {run.wall_s:.0f} s, last loss {losses(store[key])[-1]:.4f}", flush=True)


def losses(entry):
    return [float.fromhex(v) for v in entry["losses"]]


def floor_in(curves, precision):
    """Of the training in one precision: narrow formats turn a last bit into a step of their own, so that each has its own chaos."""
    pairs = [(curves[f"{key.split()[0]} {precision}"], curve) for key, curve in curves.items() if f" {precision} shuffled" in key]
    if len(pairs) < 3:
        sys.exit(f"{precision}: {len(pairs)} pairs of runs that differ in the order of their sums: the floor needs 3")
    return ab.floor_of(pairs)


def judge(store, seeds):
    """(rows, {precision: floor in percent})."""
    curves = {key: losses(entry) for key, entry in store.items()}
    floors = {precision: floor_in(curves, precision) for precision in ("bf16", *RECIPES)}
    rows = []
    for seed in range(seeds):
        chosen = {name for name in store.get(f"{seed} auto", {}).get("flops", {}) if name != "native"}
        recipe_of = {"auto": chosen.pop()} if len(chosen) == 1 else {}
        recipe_of |= {recipe: recipe for recipe in RECIPES}
        for name in ("bf16 shuffled 1", "bf16 shuffled 2", *(f"{r} shuffled {n}" for r in RECIPES for n in (1, 2)), *RECIPES, "auto"):
            recipe = recipe_of.get(name)
            again = name.split(" shuffled")[0]
            emulation = f"{recipe} emulated"
            for other in (again,) if " shuffled" in name else ("bf16", emulation):
                a, b = curves.get(f"{seed} {other}"), curves.get(f"{seed} {name}")
                if a is None or b is None:
                    continue
                floor = floors[again if " shuffled" in name else recipe or "bf16"]
                verdict = ab.compare(a, b, MARGIN, floor)
                done = store[f"{seed} {name}"]["flops"]
                converted = 1 - done.get("native", 0) / sum(done.values())
                late = [sum(ab.window(c)) / len(ab.window(c)) for c in (a, b)]
                rows.append({
                    "seed": seed, "arm": name, "reference": other, "steps": len(b), "loss_reference": late[0], "loss": late[1],
                    "gap": verdict.gap, "half_width": verdict.half_width, "correlation": verdict.correlation, "start": verdict.start,
                    "verdict": verdict.name, "within_floor": abs(verdict.gap) <= verdict.half_width, "converted": converted,
                    "ok": verdict.name == "EQUIVALENT" and (other != emulation or abs(verdict.gap) <= verdict.half_width)
                    and (name.startswith("bf16") or converted >= LEAST_SHARE),
                })
    return rows, floors


def table(rows, floors):
    lines = ["floors: " + ", ".join(f"{precision} {floor:.3f} %" for precision, floor in floors.items()), f"{'seed':4} {'arm':16} {'reference':16} {'steps':>5} {'loss':>8} {'gap %':>8} {'+-':>6} {'converted':>9}  verdict"]
    for r in rows:
        lines.append(
            f"{r['seed']:4} {r['arm']:16} {r['reference']:16} {r['steps']:5} {r['loss']:8.4f} {r['gap']:+8.3f} {r['half_width']:6.3f} "
            f"{100 * r['converted']:8.1f}%  {r['verdict']}{', within the floor' if r['within_floor'] else ''}"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--b200opt", type=pathlib.Path, required=True, help="the command under test")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", action="append", help="make no other runs than of this arm; may be given again")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "curves.json"
    store = json.loads(kept.read_text()) if kept.exists() else {}
    make(args, store)
    rows, floors = judge(store, args.seeds)
    (args.out / "table.json").write_text(json.dumps({"floors": floors, "rows": rows}, indent=1))
    (args.out / "table.txt").write_text(table(rows, floors))
    print(table(rows, floors), end="")
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(1 if failed or not rows else 0)


if __name__ == "__main__":
    main()
