# SPDX-License-Identifier: Apache-2.0
"""Every GEMM that PyTorch can ask for (entry point, transposes, types, epilogue, beta, sizes, leading dimensions, addresses, batches),
on every GPU and in every precision: what is handed to cuBLASLt for it is never what cuBLASLt's rules reject, and what they accept is
handed over, but for what policy leaves alone. The rules are those of tests/vnode_blas/narrow_rules.c, which share nothing with the
library or the virtual node. B200_LONG=1: all combinations; otherwise a sample."""
import collections
import json
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"]) / "tests" / "convert"
LONG = os.environ.get("B200_LONG") == "1"
EVERY = 1 if LONG else 97
GPUS = {"a100": 80, "l40s": 89, "h100": 90, "b200": 100, "b300": 103, "rtx_pro_6000": 120}
E4M3, E5M2, BF16, F16, F32 = 28, 29, 14, 2, 0
TYPES = {"e4m3": E4M3, "e5m2": E5M2, "bf16": BF16, "f16": F16, "f32": F32}
COMPUTE_32F, SCALAR, VEC32 = 68, 0, 2

Product = collections.namedtuple("Product", "cc a b c d mode_a mode_b ta tb m n k lda ldb ldd batch epilogue bias")


def judge(products):
    """{product: "taken" or the rule it breaks}"""
    products = list(products)
    lines = "".join(" ".join(map(str, p)) + "\n" for p in products)
    answers = subprocess.run([BUILD / "narrow_ask"], input=lines, capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == len(products)
    return dict(zip(products, answers))


def number(text):
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def fields(words):
    return {match[1]: number(match[2]) for match in (re.fullmatch(r"(\w+)=([^=]+)", word) for word in words) if match}


def product_of(cc, words):
    """What a line of the call trace says."""
    f = fields(words)
    trans = next(word for word in words if re.fullmatch("[NTC][NTC]", word))
    (a, lda), (b, ldb), (c, ldc), (d, ldd) = ((TYPES[t], int(ld)) for t, ld in (f[x].split("/") for x in "ABCD"))
    assert ldc == ldd
    modes = [int(mode) for mode in f["scalemodes"].split(",")]
    return Product(cc, a, b, c, d, *modes, *trans, f["m"], f["n"], f["k"], lda, ldb, ldd, f["batch"], f["epilogue"], f["bias_t"])


def submitted(cc, path):
    """(asked of the heuristic: {product: answers}, multiplied: Counter of products), narrow ones only."""
    asked, multiplied = collections.defaultdict(set), collections.Counter()
    with path.open() as lines:
        for line in lines:
            if " cublasLtMatmul" not in line or ("A=e4m3" not in line and "A=e5m2" not in line):
                continue
            words = line.split()
            f = fields(words)
            if words[1] == "cublasLtMatmul":
                assert f["align"] >= 16 and line.rstrip().endswith(f"align={f['align']}"), line  # and no status behind it
                multiplied[product_of(cc, words)] += 1
            else:
                assert min(map(int, f["align"].split(","))) >= 16, line
                asked[product_of(cc, words)].add(f["answer"])
    return asked, multiplied


class Call:
    """One GEMM of the program."""

    def __init__(self, line):
        words = line.split()
        self.api, self.ta, self.tb = words[1], *words[2]
        for key, value in fields(words).items():
            setattr(self, key, value)
        self.has_bias = self.epilogue & 4 != 0

    def policy(self, fmt, cc):
        """What is left alone although cuBLASLt might take it, or None."""
        if self.type == "f32":
            return "FP32 operands are left alone"
        if self.compute != COMPUTE_32F:
            return "products that the caller computes in FP16"
        if self.gap:
            return "batches whose matrices do not lie one behind the other"
        if fmt == "mxfp8" and cc >= 120:
            return "MXFP8 on 12.x"
        if fmt == "mxfp8" and self.k % 32:
            return "MXFP8 with k of broken blocks"
        if self.m == 1:
            return "one row of D"
        return None

    def products(self, fmt, cc):
        """The narrow products that would be this call's, best first."""
        if self.d or (self.has_bias and self.bias):  # addresses that are no multiples of 16
            return []
        dgrad_or_wgrad = self.batch == 1 and self.ta == "N"
        b = E5M2 if fmt == "fp8" and dgrad_or_wgrad else E4M3
        mode = VEC32 if fmt == "mxfp8" else SCALAR
        out = TYPES[self.out]
        up = lambda value: -(-value // 16) * 16
        layouts = [(self.ta, self.tb)] + ([("T", "N")] if fmt == "fp8" else [])
        return [Product(cc, E4M3, b, out, out, mode, mode, ta, tb, self.m, self.n, self.k, up(self.m if ta == "N" else self.k),
                        up(self.k if tb == "N" else self.n), self.ldd, self.batch, self.epilogue, out if self.has_bias else -1)
                for ta, tb in layouts]


def run(folder, gpu, precision, suite="asked", *arguments, **more):
    """(lines of the program, (converted calls, all calls), trace). Nothing may have failed on the way."""
    folder.mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT") and k != "LD_PRELOAD"}
    env.update(LD_PRELOAD=str(BUILD.parent.parent / "libb200opt.so"), B200OPT_LOG_DIR=str(folder / "logs"), B200OPT_RUN="run",
               B200OPT_PRECISION=precision, B200OPT_STRATEGY="always", B200OPT_GUARD="off", B200OPT_LOG_LEVEL="info", B200OPT_VNODE_GPU=gpu,
               B200OPT_VNODE_TRACE=f"{folder}/", OMP_NUM_THREADS="1", **more)
    result = subprocess.run([BUILD / "convert", precision, suite, *arguments], env=env, capture_output=True, text=True, timeout=3000)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    counts = re.search(r"FLOPs converted \((\d+) of (\d+) calls", result.stderr)
    records = [json.loads(line) for path in (folder / "logs").rglob("*.jsonl") for line in path.read_text().splitlines()]
    failed = [r for r in records if r["t"] == "guard" or r.get("reason", "").startswith("breaker") or r.get("reason") in ("self_test", "kernels")]
    assert counts and not failed, result.stderr + str(failed[:5])
    [trace] = folder.glob("*.trace")
    return result.stdout.splitlines(), tuple(map(int, counts.groups())), trace


def expectation(call, formats, cc, verdicts):
    """(format and product that have to be seen, or None; the policy that stands against it, or None)"""
    against = None
    for fmt in formats:
        taken = [product for product in call.products(fmt, cc) if verdicts[product] == "taken"]
        if taken and not call.policy(fmt, cc):
            return (fmt, taken[0]), None
        against = against or (taken and call.policy(fmt, cc)) or None
    return None, against


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "auto"])
@pytest.mark.parametrize("gpu", GPUS)
def test_submitted_is_what_rules_accept(tmp_path, gpu, precision):
    cc = GPUS[gpu]
    lines, counts, trace = run(tmp_path / "run", gpu, precision, "asked", str(EVERY))
    calls = [Call(line) for line in lines if line.startswith("asked ")]
    asked, multiplied = submitted(cc, trace)
    trace.unlink()
    formats = ["mxfp8", "fp8"] if precision == "auto" else [precision]
    verdicts = judge({p for call in calls for fmt in formats for p in call.products(fmt, cc)} | set(asked) | set(multiplied))

    refused = {product: verdicts[product] for product in (*asked, *multiplied) if verdicts[product] != "taken"}
    assert not refused, refused
    assert {answer for answers in asked.values() for answer in answers} <= {0}

    wanted, declined, by_rule = [], collections.Counter(), 0
    for call in calls:
        seen, against = expectation(call, formats, cc, verdicts)
        if seen:
            wanted.append((call, seen))
        elif against:
            declined[against] += 1
        else:
            by_rule += 1
    assert counts == (len(wanted), len(calls))
    # auto takes the faster of what is accepted; either will do.
    missing = [seen for call, seen in wanted
               if not any(multiplied[p] for fmt in formats for p in call.products(fmt, cc) if verdicts[p] == "taken")]
    assert not missing, missing[:5]
    accepted = {seen[1] for _, seen in wanted}
    forms = {(p.b, p.d, p.mode_a, p.ta, p.tb, p.batch > 1, p.epilogue) for p in multiplied}
    print(f"\n{gpu} {cc / 10} {precision}: {len(calls)} calls: {len(wanted)} converted, {by_rule} that rules reject, {sum(declined.values())} left alone by policy; "
          f"accepted products {len(accepted)}, reached {len(accepted) if precision == 'auto' else len(accepted & set(multiplied))}, of {len(forms)} forms; rejected ones submitted 0 of {len(asked)}")
    for why, count in sorted(declined.items()):
        print(f"    {count:7} {why}")
    assert bool(wanted) == (cc >= 89 and (precision != "mxfp8" or cc in (100, 103)))


@pytest.mark.parametrize("gpu,precision", [("b200", "mxfp8"), *([("b200", "fp8"), ("h100", "fp8"), ("rtx_pro_6000", "fp8")] if LONG else [])])
def test_pieces_are_what_rules_accept(tmp_path, gpu, precision):
    """Of GEMMs that are cut, each piece."""
    _, _, trace = run(tmp_path / "run", gpu, precision, "cuts", B200OPT_WORKSPACE_MB="1")
    asked, multiplied = submitted(GPUS[gpu], trace)
    verdicts = judge(set(asked) | set(multiplied))
    assert set(verdicts.values()) == {"taken"} and len(multiplied) > 6, verdicts
