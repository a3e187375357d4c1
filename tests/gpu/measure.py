# SPDX-License-Identifier: Apache-2.0
"""What one GPU says about converted GEMMs: are the numbers right, how fast are the kernels and the GEMMs, does a job train; and about timing.

    python3 tests/gpu/measure.py [--library build/release/libb200opt.so] [--out gpu-results]

Needs PyTorch for the GPU's CUDA and the built library, nothing else, and no network; takes less than 8 minutes. Writes table.txt and
table.json to `--out`. Exit status: 0 all checks passed, 1 one failed, 77 no GPU. README.md says what each part is.

On the virtual node (b200opt dryrun --bare --gpus 1 -- python3 tests/gpu/measure.py) the same is done with small matrices: its times are
modelled or the host's, and say nothing but that this script works.
"""
import argparse
import collections
import ctypes
import json
import math
import os
import pathlib
import runpy
import signal
import statistics
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests" / "e2e" / "jobs"
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "exec")]
from arguments import K_FAST, K_SLOW, AmaxArgs, CastArgs, MxArgs, Operand  # noqa: E402

NODE = "B200OPT_VNODE_SESSION" in os.environ
TIMES = "modelled times of the virtual node" if NODE else "measured times"
TIME_LIMIT_S = 3000 if NODE else 470
SKIP_STATUS = 77  # ctest's SKIP_RETURN_CODE
MARGIN = 1.03  # from this predicted ratio on B200OPT_STRATEGY=performant converts
TOKENS = 96 if NODE else 8192
# name: in, out of the linear layers of Llama 3.1
LAYERS = {"8b q,o": (4096, 4096), "8b k,v": (4096, 1024), "8b gate,up": (4096, 14336), "8b down": (14336, 4096), "lm_head": (4096, 128256),
          "70b q,o": (8192, 8192), "70b gate,up": (8192, 28672), "70b down": (28672, 8192)}
if NODE:
    LAYERS = {name: (fan_in // 32, fan_out // 32) for name, (fan_in, fan_out) in LAYERS.items() if name.startswith("8b")}
KERNEL_LINES, KERNEL_WIDTH = (384, 256) if NODE else (16384, 16384)
COPY_BYTES = (1 << 20) if NODE else (2 << 30)
ROUNDS, REPEATS = (1, 2) if NODE else (5, 10)
TIMING_LINES = ("timing", "time", "coll_time", "untimed", "overhead")
TRAIN = ["--steps", "12", "--batch", "2", "--seq", "64", "--layers", "1"] if NODE else \
    ["--steps", "80", "--batch", "8", "--seq", "1024", "--layers", "4", "--width", "2048"]
TRAIN_TOKENS = 2 * 64 if NODE else 8 * 1024  # of a step and rank


# ---- in a child, with the library preloaded: one precision for the whole process


class Clock:
    """Times work on the GPU by events. Each round is enqueued behind a large copy, so that the host's own time does not show."""

    def __init__(self):
        import torch

        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
        self.target = torch.empty_like(self.source)

    def copy(self, _=0):
        self.target.copy_(self.source)

    def seconds(self, work):
        """Median over the rounds of the mean time of work(i)."""
        work(0)
        rounds = []
        for _ in range(ROUNDS):
            self.copy()
            self.begin.record()
            for i in range(REPEATS):
                work(i)
            self.end.record()
            self.end.synchronize()
            rounds.append(self.begin.elapsed_time(self.end) / 1e3 / REPEATS)
        return statistics.median(rounds)


def time_gemms(clock):
    """Seconds of the three products of each layer. Operands take turns, so that none is found in the L2 cache."""
    import torch

    def matrix(rows, columns):
        return torch.randn(rows, columns, device="cuda").bfloat16()

    rows = []
    for name, (fan_in, fan_out) in LAYERS.items():
        turns = 1 if NODE else max(1, min(8, (1 << 29) // (2 * (TOKENS + fan_out) * fan_in)))
        x, w, dy = ([matrix(*shape) for _ in range(turns)] for shape in ((TOKENS, fan_in), (fan_out, fan_in), (TOKENS, fan_out)))
        products = {
            "fprop": (fan_out, TOKENS, fan_in, lambda i: x[i % turns] @ w[i % turns].t()),
            "dgrad": (fan_in, TOKENS, fan_out, lambda i: dy[i % turns] @ w[i % turns]),
            "wgrad": (fan_in, fan_out, TOKENS, lambda i: dy[i % turns].t() @ x[i % turns]),
        }
        for role, (m, n, k, work) in products.items():
            rows.append({"layer": name, "role": role, "m": m, "n": n, "k": k, "seconds": clock.seconds(work)})
    return rows


SOURCES = ("bf16", "f16", "f32")  # enum b200_source


class Kernels:
    """The library's own GPU image, loaded through the driver."""

    FATBIN = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # magic, version, bytes of the header; 8 more bytes give those of the rest

    def __init__(self, library):
        import torch

        data = library.read_bytes()
        at = data.find(self.FATBIN)
        assert at >= 0, f"{library} has no GPU kernels: it was built without nvcc"
        (size,) = struct.unpack_from("<Q", data, at + 8)
        torch.cuda.init()
        torch.cuda.synchronize()
        self.driver, self.module = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.call("cuModuleLoadData", ctypes.byref(self.module), data[at : at + 16 + size])

    def call(self, name, *args):
        status = getattr(self.driver, name)(*args)
        assert status == 0, f"{name}: status {status}"

    def launcher(self, name, args):
        """work(i) that launches a kernel over the whole matrix."""
        import torch

        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
        blocks = math.ceil(KERNEL_LINES / 128) * math.ceil(KERNEL_WIDTH / 128)
        if "amax" in name:
            blocks = min(blocks, 4 * self.sms)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        return lambda _: self.call("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, stream, params, None) or args


def scale_factors(scales, outer, blocks):
    """[outer, blocks] of powers of two, out of the tiles that cuBLASLt reads."""
    import torch

    o, b = torch.arange(outer).unsqueeze(1), torch.arange(blocks)
    at = (o // 128 * ((blocks + 3) // 4) + b // 4) * 512 + o % 32 * 16 + o % 128 // 32 * 4 + b % 4
    return torch.exp2(scales.cpu()[at].float() - 127)


def time_kernels(clock, library):
    """Each quantisation kernel over a large matrix: seconds, the bytes that it has to move, and whether its bits are the recipe's."""
    import emulation
    import torch

    kernels, lines, width = Kernels(library), KERNEL_LINES, KERNEL_WIDTH
    scale = torch.zeros(4, dtype=torch.int32, device="cuda")
    out = torch.empty(lines * width, dtype=torch.uint8, device="cuda")
    scales = torch.empty(lines * width // 32, dtype=torch.uint8, device="cuda")
    some = slice(0, 128)  # lines that are compared

    def values(shape):
        return out.view(shape).view(torch.float8_e4m3fn)

    def rows_of(source, x):
        fast = Operand(x.data_ptr(), width, lines, width, SOURCES.index(source), K_FAST)
        slow = Operand(x.data_ptr(), width, width, lines, SOURCES.index(source), K_SLOW)
        factor = torch.tensor(448.0) / x.float().abs().max().cpu()
        wanted = emulation.cast(x[some].cpu().float() * factor, "e4m3")
        cast = [out.data_ptr(), width, scale.data_ptr(), None, 0]
        turned = [out.data_ptr(), lines, *cast[2:]]
        mx = [out.data_ptr(), width, scales.data_ptr(), None, 0, 0]
        along, across = x[some].cpu(), x[:, some].cpu().t()
        yield "amax", AmaxArgs(fast, scale.data_ptr(), 448), 0, lambda: scale.cpu()[2:3].view(torch.float32) == factor
        yield "cast_kfast", CastArgs(fast, *cast), out.numel(), lambda: values((lines, width))[some].cpu().float() == wanted
        yield "cast_kslow", CastArgs(slow, *cast), out.numel(), lambda: values((lines, width))[some].cpu().float() == wanted
        yield "cast_transpose", CastArgs(slow, *turned), out.numel(), lambda: values((width, lines))[:, some].cpu().float().t() == wanted
        yield "mx_kfast", MxArgs(fast, *mx), out.numel() + scales.numel(), lambda: (
            values((lines, width))[some].cpu().float().unflatten(1, (-1, 32)) * scale_factors(scales, lines, width // 32)[some].unsqueeze(2)
        ).flatten(1) == emulation.per_block(along)
        yield "mx_kslow", MxArgs(slow, *mx), out.numel() + scales.numel(), lambda: (
            values((lines, width))[:, some].cpu().float().t().unflatten(1, (-1, 32)) * scale_factors(scales, width, lines // 32)[some].unsqueeze(2)
        ).flatten(1) == emulation.per_block(across)

    rows = []
    for source, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        x = torch.randn(lines, width, device="cuda").to(dtype)
        for name, args, written, equal in rows_of(source, x):
            operation, _, form = name.partition("_")
            entry = f"b200_{name}_{source}" if form in ("", "transpose") else f"b200_{operation}_{source}_{form}"
            seconds = clock.seconds(kernels.launcher(entry, args))
            rows.append({"kernel": entry, "seconds": seconds, "bytes": x.nbytes + written, "exact": bool(equal().all())})
    return rows


def check_recipe(precision, folder):
    """The linear layers of tests/e2e/jobs/gemms.py against the emulation of the recipe. Tensor cores need not add up in FP32 as the virtual
    node does, so the limit is not that of summation but an eighth of what quantising itself costs in the same product."""
    import emulation
    import torch

    run_script(JOBS / "gemms.py", "--out", folder / "gemms.pt")
    for label, case in torch.load(folder / "gemms.pt").items():
        x, weight, dy = case["x"], case["weight"], case["dy"]
        products = {"y": (emulation.fprop, x, weight, x, weight.t()), "dx": (emulation.dgrad, dy, weight, dy, weight),
                    "dw": (emulation.wgrad, dy, x, dy.t(), x)}
        for name, (quantise, a, b, left, right) in products.items():
            if left.size(1) % (32 if precision == "mxfp8" else 16):
                continue  # left in BF16
            recipe, plain = quantise(precision, a, b).exact()[0], left.double() @ right.double()
            bias = case["bias"].double() if name == "y" and "bias" in case else 0.0
            cost = (recipe - plain).norm()
            for result, wanted in ((name, recipe + bias), (f"{name}32", recipe)):
                error = (case[result].double() - wanted).norm()
                rounding = 0 if result.endswith("32") else wanted.norm() * 2**-9
                yield f"{label} {result}", (error / (cost / 8 + rounding)).item(), (error / wanted.norm()).item()


def check_calls(precision):
    """Epilogues, scalars, batches and odd sizes as PyTorch asks for them, element by element against FP64. The bound is that of
    tests/convert/convert.c: both operands rounded the worst way in every term."""
    import torch
    import torch.nn.functional as F

    g = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=g).bfloat16().cuda()

    def verdict(name, got, a, b, added=None, alpha=1.0, beta=1.0, activation=lambda x: x, gradient=False):
        a, b, added = a.double().cpu(), b.double().cpu(), 0.0 if added is None else beta * added.double().cpu()
        wanted, magnitude = activation(alpha * (a @ b) + added), abs(alpha) * (a.abs() @ b.abs())
        first, second = (2**-3 if gradient and precision == "fp8" else 2**-4), 2**-4
        rounding = (wanted.abs() + abs(added) + magnitude * 2**-10) * 2**-8
        bound = 1.13 * 1.05 * magnitude * (first + second + first * second) + rounding + 1e-6
        error = (got.double().cpu() - wanted).abs()
        return name, (error / bound).max().item(), (error.norm() / wanted.norm()).item()

    for tokens, fan_in, fan_out in ((1, 96, 160), (7, 64, 16), (33, 1056, 48), (129, 160, 272), (257, 96, 100), (256, 512, 384)):
        x, w, dy, bias = draw(tokens, fan_in), draw(fan_out, fan_in), draw(tokens, fan_out), draw(fan_out)
        c, dw = draw(tokens, fan_out), draw(fan_out, fan_in)
        size = f"{tokens}x{fan_in}x{fan_out}"
        yield verdict(f"{size} linear", F.linear(x, w), x, w.t())
        yield verdict(f"{size} bias", F.linear(x, w, bias), x, w.t(), bias)
        yield verdict(f"{size} bias relu", torch._addmm_activation(bias, x, w.t()), x, w.t(), bias, activation=F.relu)
        yield verdict(f"{size} bias gelu", torch._addmm_activation(bias, x, w.t(), use_gelu=True), x, w.t(), bias,
                      activation=lambda v: F.gelu(v, approximate="tanh"))
        yield verdict(f"{size} dgrad", dy @ w, dy, w, gradient=True)
        yield verdict(f"{size} wgrad", dy.t() @ x, dy.t(), x, gradient=True)
        yield verdict(f"{size} wgrad added", torch.addmm(dw, dy.t(), x), dy.t(), x, dw, gradient=True)
        yield verdict(f"{size} scaled", torch.addmm(c, x, w.t(), alpha=-0.5, beta=1.5), x, w.t(), c, -0.5, 1.5)
        yield verdict(f"{size} FP32 result", torch.mm(x, w.t(), out_dtype=torch.float32), x, w.t())
    a, b, c = draw(3, 64, 96), draw(3, 96, 48), draw(3, 64, 48)
    yield verdict("batch of 3", torch.baddbmm(c, a, b, alpha=2, beta=0.5), a, b, c, 2, 0.5)


def run_script(path, *args):
    sys.argv = [str(path), *map(str, args)]
    runpy.run_path(str(path), run_name="__main__")


def graphed(folder):
    """Losses of a step that is captured in a CUDA graph and replayed, and of the same without one."""
    losses = {}
    for name, options in (("eager", ["--eager"]), ("graph", [])):
        run_script(JOBS / "graphed.py", "--out", folder / f"{name}.json", *options)
        losses[name] = [float.fromhex(v) for v in json.loads((folder / f"{name}.json").read_text())["losses"]]
    return losses


def child(precision, folder, library):
    """All of one precision."""
    import torch

    result = {"precision": precision}
    if precision in ("fp8", "mxfp8"):
        result["recipe"], result["calls"] = list(check_recipe(precision, folder)), list(check_calls(precision))
        result["graph"] = graphed(folder)
    torch.manual_seed(0)
    clock = Clock()
    result["copy_bytes_per_s"] = 2 * COPY_BYTES / clock.seconds(clock.copy)
    if folder.name == "native":
        result["kernels"] = time_kernels(clock, library)
    result["gemms"] = time_gemms(clock)
    (folder / "result.json").write_text(json.dumps(result))


# ---- the parent, free of CUDA


def gpu_facts():
    """Of GPU 0, and how many there are; None without one."""
    script = ("import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps({'name': p.name, 'cc': 10 * p.major + p.minor, "
              "'gpus': torch.cuda.device_count(), 'torch': torch.__version__, 'cuda': torch.version.cuda}))")
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return json.loads(asked.stdout) if asked.returncode == 0 else None


class Bench:
    def __init__(self, library, out, gpu):
        self.library, self.out, self.gpu = library, out, gpu
        self.deadline = time.monotonic() + TIME_LIMIT_S
        self.lines, self.checks = [], []

    def say(self, line=""):
        self.lines.append(line)
        print(line, flush=True)

    def check(self, name, passed, text):
        self.checks.append({"check": name, "passed": bool(passed), "text": text})
        self.say(f"{'ok   ' if passed else 'WRONG'} {name}: {text}")

    def run(self, arm, precision, command, strategy="always", timing="auto"):
        """The arm's folder, or None when the command failed."""
        folder = self.out / arm
        folder.mkdir(parents=True, exist_ok=True)
        for stale in [*folder.rglob("*.jsonl"), *folder.glob("*.json")]:
            stale.unlink()
        preloaded = [p for p in os.environ.get("LD_PRELOAD", "").split(":") if p and pathlib.Path(p).name != self.library.name]
        env = dict(os.environ, LD_PRELOAD=":".join([str(self.library), *preloaded]), B200OPT_LOG_DIR=str(folder / "log"),
                   B200OPT_PRECISION=precision, B200OPT_STRATEGY=strategy, B200OPT_TIMING=timing, PYTHONDONTWRITEBYTECODE="1")
        env.pop("B200OPT_RUN", None)
        env.pop("B200OPT_VNODE_LOG_DIR", None)
        with (folder / "output").open("w") as output:
            started = subprocess.Popen([sys.executable, *map(str, command)], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                status = started.wait(max(1, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                status = f"{started.wait()}, as the time was up"
        if status != 0:
            self.check(arm, False, f"exit status {status}; {folder / 'output'} ends in: {(folder / 'output').read_text()[-600:]}")
            return None
        return folder

    def measure(self, arm, precision):
        """Result of child(), with the log's GEMMs."""
        folder = self.run(arm, precision, [__file__, "--child", precision, "--library", self.library, "--out", self.out / arm])
        if folder is None:
            return None
        return dict(json.loads((folder / "result.json").read_text()), log=records(folder))

    def train(self, precision, ranks, timing="auto"):
        strategy = "performant" if precision == "auto" else "always"
        arm = f"train-{precision}" + ("" if timing == "auto" else f"-timing-{timing}")
        out = self.out / arm / "out.json"
        command = [JOBS / "start_ranks.py", ranks, 5, ROOT / "tools" / "demo_job" / "train.py", *TRAIN, "--out", out]
        folder = self.run(arm, precision, command, strategy, timing)
        if folder is None:
            return None
        if not out.exists():
            self.check(arm, False, f"no result; {folder / 'output'} ends in: {(folder / 'output').read_text()[-600:]}")
            return None
        result = json.loads(out.read_text())
        losses = [float.fromhex(v) for v in result["losses"]]
        log = records(folder)
        done = collections.Counter()
        for r in log:
            if r["t"] == "gemm":
                done[r["plan"]] += r["flops"]
        return {"precision": precision, "ranks": ranks, "first": losses[0], "last": statistics.mean(losses[-len(losses) // 4 :]),
                "tokens_per_s": result["steps_per_s"] * TRAIN_TOKENS * ranks, "losses": losses,
                "share": {plan: flops / sum(done.values()) for plan, flops in done.items()}, "warnings": warnings(folder),
                "timing": [r for r in log if r["t"] in TIMING_LINES], "steps": [r for r in log if r["t"] == "step"]}


def records(folder):
    """Of the library's logs."""
    paths = [p for p in sorted((folder / "log").rglob("*.jsonl")) if not p.name.endswith(".node.jsonl")]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def warnings(folder):
    return sorted({r["text"] for r in records(folder) if r["t"] == "warn"} | {f"guard: {r['role']}" for r in records(folder) if r["t"] == "guard"})


def judge_numbers(bench, arms):
    for precision, arm in arms.items():
        for part, what in (("recipe", "linear layers against the emulated recipe"), ("calls", "calls against FP64")):
            name, worst, _ = max(arm[part], key=lambda row: math.inf if math.isnan(row[1]) else row[1])
            relative = statistics.median(row[2] for row in arm[part])
            bench.check(f"{precision} {part}", worst <= 1, f"{len(arm[part])} {what}: at most {worst:.3f} of the bound ({name}); "
                        f"relative error {relative:.2e} in the median")
        reasons = collections.Counter()
        for r in arm["log"]:
            if r["t"] == "gemm":
                reasons[r["reason"]] += r["calls"]
        left = set(reasons) - {"converted", "dims", "ld", "batch", "alignment"}
        bench.check(f"{precision} plans", reasons["converted"] and not left, f"GEMMs by reason: {dict(reasons)}")
        graph, eager = arm["graph"]["graph"], arm["graph"]["eager"]
        apart = max(abs(a - b) / abs(b) for a, b in zip(graph, eager, strict=True))
        bench.check(f"{precision} graph", apart <= 1e-3, f"a captured step's losses are at most {apart:.1e} from those without a graph"
                    + (" (bit-identical)" if graph == eager else ""))


def table_of_kernels(bench, native):
    peak = native["copy_bytes_per_s"]
    bench.say(f"\nlarge copy: {peak / 1e9:.1f} GB/s read and written; kernels over {KERNEL_LINES} x {KERNEL_WIDTH}, compulsory bytes; {TIMES}")
    bench.say(f"{'kernel':28} {'us':>9} {'GB/s':>8} {'of copy':>8}")
    for row in native["kernels"]:
        row["share"] = row["bytes"] / row["seconds"] / peak
        bench.say(f"{row['kernel']:28} {row['seconds'] * 1e6:9.1f} {row['bytes'] / row['seconds'] / 1e9:8.0f} {row['share']:8.1%}")
    wrong = [row["kernel"] for row in native["kernels"] if not row["exact"]]
    bench.check("kernels", not wrong, f"{len(native['kernels'])} kernels bit-exact" if not wrong else f"not bit-exact: {' '.join(wrong)}")


def modelled(log, row):
    """Ratio that the cost model gave for that GEMM, or why it was not converted."""
    key = {"m": row["m"], "n": row["n"], "k": row["k"], "role": row["role"], "batch": 1}
    mine = [r for r in log if r["t"] == "gemm" and all(r[name] == value for name, value in key.items())]
    if not mine or mine[-1]["reason"] != "converted":
        return mine[-1]["reason"] if mine else "not seen"
    return sum(r["model_native_ns"] for r in mine) / sum(r["model_narrow_ns"] for r in mine)


def table_of_gemms(bench, native, arms, again):
    rows = []
    bench.say(f"\nGEMMs at {TOKENS} tokens, BF16 against converted; x: times as fast, quantisation included; (predicted); {TIMES}")
    bench.say(f"{'layer':12} {'role':6} {'BF16 us':>9} {'TFLOP/s':>8}" + "".join(f" {p + ' us':>10} {'x (model)':>14}" for p in arms))
    for i, base in enumerate(native["gemms"]):
        row = {name: base[name] for name in ("layer", "role", "m", "n", "k", "seconds")}
        line = f"{base['layer']:12} {base['role']:6} {base['seconds'] * 1e6:9.1f} {2e-12 * base['m'] * base['n'] * base['k'] / base['seconds']:8.1f}"
        for precision, arm in arms.items():
            seconds, model = arm["gemms"][i]["seconds"], modelled(arm["log"], base)
            row[precision] = {"seconds": seconds, "ratio": base["seconds"] / seconds, "predicted": model}
            shown = f"({model:.2f})" if isinstance(model, float) else f"({model})"
            line += f" {seconds * 1e6:10.1f} {base['seconds'] / seconds:6.2f} {shown:>7}"
        rows.append(row)
        bench.say(line)
    for precision in arms:
        pairs = [(row[precision]["ratio"], row[precision]["predicted"]) for row in rows if isinstance(row[precision]["predicted"], float)]
        bench.check(f"{precision} GEMMs", len(pairs) == len(rows), f"{len(pairs)} of {len(rows)} converted")
        if pairs:
            error = statistics.median(abs(p / r - 1) for r, p in pairs)
            right = sum((r >= 1) == (p >= MARGIN) for r, p in pairs)
            bench.say(f"      {precision}: predicted ratio off by {error:.1%} in the median; `performant` decides {right} of {len(pairs)} rightly")
    if again:
        drift = [b["seconds"] / a["seconds"] - 1 for a, b in zip(native["gemms"], again["gemms"], strict=True)]
        bench.say(f"      BF16 again at the end: {statistics.median(drift):+.1%} in the median, {min(drift):+.1%} to {max(drift):+.1%}")
    return rows


def table_of_training(bench, rows):
    bench.say(f"\ntraining, FSDP2: train.py {' '.join(TRAIN)}" + ("; tokens/s are this machine's" if NODE else ""))
    bench.say(f"{'precision':10} {'ranks':>5} {'first':>9} {'last':>9} {'tokens/s':>10} {'x':>6}  FLOPs by plan")
    base = next((row for row in rows if row["precision"] == "native"), None)
    for row in rows:
        share = ", ".join(f"{plan} {part:.1%}" for plan, part in sorted(row["share"].items()))
        speed = row["tokens_per_s"] / base["tokens_per_s"] if base else math.nan
        bench.say(f"{row['precision']:10} {row['ranks']:5} {row['first']:9.5f} {row['last']:9.5f} {row['tokens_per_s']:10.0f} {speed:6.2f}  {share}")
    for row in rows:
        if base and row is not base:
            gap = row["last"] / base["last"] - 1
            converted = row["precision"] == "auto" or row["share"].get(row["precision"], 0) >= 0.9
            bench.check(f"train {row['precision']}", abs(gap) <= 0.02 and converted and not row["warnings"],
                        f"mean loss of the last quarter {gap:+.2%} from native's" + "".join(f"; {w}" for w in row["warnings"]))


def judge_timing(bench, timed, untimed):
    """What the events around collectives and steps say of one job, and what they cost it."""
    lines = {kind: [r for r in timed["timing"] if r["t"] == kind] for kind in TIMING_LINES}
    steps, clock = lines["time"], lines["timing"][-1]
    bench.check("timing lines", steps and not any(r["t"] == "time" for r in untimed["timing"]), f"{len(steps)} steps timed; {clock}")
    bench.check("timing numbers", timed["losses"] == untimed["losses"], "losses with and without timing are "
                + ("bit-identical" if timed["losses"] == untimed["losses"] else "different"))
    wrong = [r for r in steps if not 0 <= r["blocked_ns"] <= r["dev_ns"] or not r["busy_ns"] <= r["dev_ns"] or r["comm_ns"] < 0]
    bench.check("timing sums", not wrong, f"blocked and busy time within every step; {wrong[:1]}")
    if steps and not NODE:  # there the host's clock runs beside the modelled one
        host = {(r["gen"], r["step"]): r["dur_ns"] for r in timed["steps"]}
        apart = [abs(r["dev_ns"] / host[r["gen"], r["step"]] - 1) for r in steps if (r["gen"], r["step"]) in host]
        bench.check("timing clock", apart and statistics.median(apart) <= 0.05 and clock["clock"] == "host",
                    f"device and host time of a step {statistics.median(apart):.2%} apart in the median, bracket {clock['clock_ns'] / 1e3:.0f} us")
    bench.say(f"timing: {timed['tokens_per_s']:.0f} tokens/s with it, {untimed['tokens_per_s']:.0f} without; by its own account "
              + "; ".join(f"{r['pct']:+.2f} +- {r['noise_pct']:.2f} %" for r in lines["overhead"]))
    for r in lines["coll_time"]:
        bench.say(f"      {r['op']} {r['dtype']} x{r['nranks']}: {r['calls']} calls, {r['dur_ns'] / r['calls'] / 1e3:.1f} us each, {1 - r['blocked_ns'] / max(r['dur_ns'], 1):.1%} hidden")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build" / "release" / "libb200opt.so")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-results"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    library, out = args.library.resolve(), args.out.resolve()
    if args.child:
        return child(args.child, out, library)
    if not library.exists():
        parser.error(f"{library} does not exist: build it (tools/setup), or name it with --library")
    gpu = gpu_facts()
    if gpu is None:
        print("measure: no GPU that PyTorch can use; skipped")
        return SKIP_STATUS
    out.mkdir(parents=True, exist_ok=True)
    bench, start = Bench(library, out, gpu), time.monotonic()
    recipes = (["fp8"] if gpu["cc"] >= 89 else []) + (["mxfp8"] if gpu["cc"] // 10 == 10 else [])
    bench.say(f"{gpu['gpus']} x {gpu['name']}, PyTorch {gpu['torch']}, CUDA {gpu['cuda']}; {TIMES}")

    native = bench.measure("native", "native")
    arms = {precision: arm for precision in recipes if (arm := bench.measure(precision, precision))}
    judge_numbers(bench, arms)
    gemms = []
    if native:
        table_of_kernels(bench, native)
        gemms = table_of_gemms(bench, native, arms, None if NODE else bench.measure("native-again", "native"))
    training = [row for precision in ["native", *recipes, "auto"] if (row := bench.train(precision, min(gpu["gpus"], 2)))]
    table_of_training(bench, training)
    untimed = bench.train("native", min(gpu["gpus"], 2), timing="off")
    if training and untimed:
        judge_timing(bench, training[0], untimed)

    wrong = sum(not check["passed"] for check in bench.checks)
    bench.say(f"\n{len(bench.checks)} checks, {wrong} wrong; {time.monotonic() - start:.0f} s")
    result = {"gpu": gpu, "times": TIMES, "checks": bench.checks, "copy_bytes_per_s": native and native["copy_bytes_per_s"],
              "kernels": native["kernels"] if native else [], "gemms": gemms,
              "training": [{k: v for k, v in row.items() if k not in ("timing", "steps")} for row in training]}
    (out / "table.json").write_text(json.dumps(result, indent=1))
    (out / "table.txt").write_text("\n".join(bench.lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
