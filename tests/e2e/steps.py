# SPDX-License-Identifier: Apache-2.0
"""Steps, losses, FLOPs, collectives and device times in the library's log of real trainings, against PyTorch's own optimizer hook, what
the job printed, PyTorch's FLOP counter, the model's arithmetic and the virtual node's clock.

    b200opt dryrun --gpus 4 --log DIR -- python tests/e2e/steps.py [--long] [--only CLIENT]

Runs are forked from one process that has imported PyTorch, as in sweep.py.
"""
import argparse
import collections
import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import pathlib
import sys
import tempfile
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools" / "demo_job")]
import oracle  # noqa: E402
import step_checks as check  # noqa: E402
from conftest import Job  # noqa: E402
from matrix import JOBS, TITAN, config_of, train  # noqa: E402
from sweep import IMPORTS, Sweep  # noqa: E402

GEMM_OPERATORS = ("mm", "addmm", "bmm", "baddbmm")
DEMO_LINE = r"^step (?P<step>\d+) loss (?P<loss>\S+)"
HF_LINE = r"^\{'loss': '?(?P<loss>[^',]+)"
TITAN_LINE = r"step: *(?P<step>\d+) .*?loss: *(?P<loss>[\d.]+)"
TINY = ("--width", 64, "--seq", 64, "--batch", 2, "--text-mb", 0.2)


@dataclasses.dataclass(frozen=True)
class Client:
    job: Job
    printed: str  # its loss lines
    flops: typing.Callable  # flops(): of the GEMMs of one rank in one step; runs in a process of its own
    config: typing.Any = None  # of tools/demo_job/train.py
    first_op: str = "AllGather"  # the collective that a step begins with; "": a step begins in the backward pass
    lost: tuple = ()  # steps of the optimizer that need not be found
    interrupted: tuple = ()  # steps of the optimizer before which something else was done
    environment: dict = dataclasses.field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------------------------- FLOPs


def gemm_flops(run):
    """What PyTorch's FLOP counter says of run(), attention's fused kernels left out: these are no GEMM calls."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    operators = [getattr(torch.ops.aten, name) for name in GEMM_OPERATORS]
    counts = counter.get_flop_counts()["Global"]
    return sum(counts.get(operator, 0) for operator in operators)


def demo_flops(job):
    import torch
    import train as demo

    words = [str(word) for word in job.command]
    sys.argv = ["train.py", *(w for w in words[words.index("--steps") :])]
    args = demo.parse_args()
    demo.choose_attention(args.sdpa)
    model = demo.GPT(args)
    ids = torch.randint(demo.VOCAB, (args.batch, args.seq))
    return args.accum * gemm_flops(lambda: model(ids).sum().backward())


def hf_flops(seq, batch, accum):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=seq, use_cache=False)
    model = LlamaForCausalLM(config)
    ids = torch.randint(256, (batch, seq))
    return accum * gemm_flops(lambda: model(input_ids=ids, labels=ids).loss.backward())


def titan_flops(seq, batch):
    """Of torchtitan's Llama 3 debug model, by arithmetic. Selective recomputation saves all linear layers but the projections around
    attention; flex attention without a compiler is two products forward and five backward, scores in whole sequences."""
    width, hidden, vocabulary, layers = 256, 768, 2048, 6
    around = width * 3 * width + width * width
    linears = layers * (3 * (around + 3 * width * hidden) + around) + 3 * width * vocabulary
    return 2 * seq * batch * linears + 7 * layers * 2 * seq * seq * width * batch


# ----------------------------------------------------------------------------------------------------------------------- clients


def demo(name, *options, world=2, steps=10, **extra):
    job = train(f"steps-{name}", *TINY, *options, world=world, steps=steps)
    return Client(job, DEMO_LINE, lambda: demo_flops(job), config_of(job), **extra)


TITAN_SEQ = 64
DDP_LOST = (0, 1)  # DDP forms its buckets anew after the first step


def hf(name, *options, accum=1, steps=10, world=2, **extra):
    command = (JOBS / "hf_trainer.py", "--steps", steps, "--accum", accum, "--dir", "{dir}/trainer", "--out", "{out}", *options)
    job = Job(f"steps-{name}", command, world, needs=("transformers", "accelerate"))
    return Client(job, HF_LINE, lambda: hf_flops(64, 4, accum), **extra)


# It reduces once more after its first step.
def titan(name, *options, steps=16, world=2, **extra):
    words = list(TITAN.command)
    for option, value in (("--training.steps", steps), ("--training.seq-len", TITAN_SEQ)):
        words[words.index(option) + 1] = value
    job = dataclasses.replace(TITAN, name=f"steps-{name}", command=(*words, *options), world=world)
    return Client(job, TITAN_LINE, lambda: titan_flops(TITAN_SEQ, 2), first_op="AllReduce", lost=(0,), **extra)


SHORT = [
    demo("fsdp2-accum", "--accum", 2),
    demo("fsdp2-evaluation", "--eval-every", 6, steps=18, interrupted=(6, 12)),
    demo("fsdp1", "--mode", "fsdp1"),
    demo("ddp-accum", "--mode", "ddp", "--accum", 2, steps=24, first_op="", lost=DDP_LOST),
    demo("fsdp2-4-ranks", world=4),
    hf("hf-trainer", "--fsdp-version", 2),
    titan("torchtitan"),
]

MORE = 40
EVALUATED = {"steps": MORE, "interrupted": tuple(range(10, MORE, 10))}
RARELY = {"B200OPT_TIMING_EVERY": "16"}
LONG = [
    *(demo(f"fsdp2-{world}-ranks-accum", "--accum", 4, world=world, steps=MORE) for world in (2, 4, 8)),
    *(demo(f"fsdp1-{world}-ranks-no-sync", "--mode", "fsdp1", "--accum", 2, world=world, steps=MORE) for world in (2, 4, 8)),
    *(demo(f"ddp-{world}-ranks", "--mode", "ddp", world=world, steps=MORE, first_op="", lost=DDP_LOST) for world in (2, 4, 8)),
    demo("fsdp2-recompute", "--ckpt", steps=MORE),
    demo("fsdp2-recompute-dropout-math", "--ckpt", "--dropout", 0.1, "--sdpa", "math", steps=MORE),
    demo("fsdp2-rarely-sampled", steps=100, environment=RARELY),
    demo("fsdp2-checkpoint", "--save", "{dir}/checkpoint", "--save-at", 19, steps=MORE, interrupted=(20,)),
    demo("fsdp2-evaluations", "--eval-every", 10, **EVALUATED),
    demo("fsdp1-evaluations", "--mode", "fsdp1", "--eval-every", 10, **EVALUATED),
    *(hf(f"hf-trainer-fsdp{version}-accum", "--fsdp-version", version, accum=2, steps=MORE) for version in (1, 2)),
    *(hf(f"hf-trainer-fsdp{version}-evaluations", "--fsdp-version", version, "--eval-every", 10, **EVALUATED) for version in (1, 2)),
    titan("torchtitan-4-ranks", world=4, steps=MORE),
    titan("torchtitan-checkpoint", "--checkpoint.enable", "--checkpoint.interval", 20, steps=MORE, interrupted=(20,)),
]


# --------------------------------------------------------------------------------------------------------------------------- runs


def in_child(function, *arguments):
    """The result of function(*arguments) in a forked process: this one stays without CUDA, autograd's threads and the node."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "w") as out:
                json.dump(function(*arguments), out)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0, f"{function.__name__} failed"
    return json.loads(text)


def watch(environment):
    """What each rank does before its job: PyTorch's hooks write down the truth."""

    def before(folder, rank):
        from torch.nn.modules import module
        from torch.optim import optimizer

        os.environ.update(environment)
        out = open(folder / f"truth.{rank}", "w", buffering=1)
        node_ns = ctypes.CDLL(None).vnode_host_now_ns
        node_ns.restype = ctypes.c_int64
        passes = []  # forward passes, each within the one before

        def stepped(which, arguments, keywords):
            print(json.dumps({"what": "optimizer", "ns": time.monotonic_ns(), "id": id(which)}), file=out)

        def begun(which, arguments):
            passes.append({"what": "forward", "ns": time.monotonic_ns(), "node_ns": node_ns()})

        def ended(which, arguments, result):
            row = passes.pop()
            if not passes and which.training:
                print(json.dumps({**row, "end_ns": time.monotonic_ns()}), file=out)

        optimizer.register_optimizer_step_post_hook(stepped)
        module.register_module_forward_pre_hook(begun)
        module.register_module_forward_hook(ended, always_call=True)

    return before


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_run(folder, world):
    truths, logs = [], {}
    for rank in range(world):
        truth = collections.defaultdict(list)
        for row in read_lines(folder / f"truth.{rank}"):
            truth[row["what"]].append(row)
        truths.append(truth)
    for path in sorted(folder.glob("shim/**/*.jsonl")):
        lines = read_lines(path)
        if check.of_type(lines, "step") or check.of_type(lines, "coll"):
            logs[lines[0]["rank"]] = lines
    assert sorted(logs) == list(range(world)), f"logs of ranks {sorted(logs)}"
    return truths, [logs[rank] for rank in range(world)]


def node_times(operations):
    """The node's time of each operation, and its host time of a call that starts one."""
    node = ctypes.CDLL(None)
    node.vnode_model_collective_ns.restype = node.vnode_model_host_ns.restype = ctypes.c_int64
    node.vnode_model_collective_ns.argtypes = ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64
    takes = [node.vnode_model_collective_ns(op.encode(), nranks, size) for op, nranks, size in operations]
    return takes, node.vnode_model_host_ns(b"ncclAllReduce")


def sizes_of(config):
    """{(op, type, ranks, bytes): how many} in one step of the demo job."""
    expected = collections.Counter()
    *blocks, root = oracle.parameter_shapes(config)
    size_of = oracle.flat_elements if config.mode == "fsdp1" else oracle.padded_elements
    for unit, gathers in [(u, 2) for u in blocks] + [(root, 1)]:
        elements = size_of(unit, config.world)
        expected["AllGather", config.parameter_type, config.world, elements * oracle.SIZE[config.parameter_type]] += gathers * config.accum
        expected["ReduceScatter", "f32", config.world, elements * 4] += 1
    norms = 1 if config.mode == "fsdp1" else sum(len(unit) for unit in [*blocks, root])
    expected["AllReduce", "f32", config.world, norms * 4] += 1
    expected["AllReduce", "f32", config.world, 4] += 1
    return expected


CLOCK_NS = 1000  # of a step, by device and by host


def judge(client, folder):
    """Returns a line of figures."""
    truths, logs = read_run(folder, client.job.world)
    expected = in_child(client.flops)
    if client.config:
        computed = oracle.gemm_flops(client.config)
        assert expected == computed, f"the FLOP counter says {expected}, the arithmetic {computed}"
    printed, notes = 0, []
    for rank, (truth, lines) in enumerate(zip(truths, logs)):
        assert not check.of_type(lines, "drop"), "lines were dropped"
        ops = check.of_type(lines, "op")
        found = check.boundaries(check.kept_steps(lines), truth, client.lost)
        check.marks(lines, found, client.interrupted)
        if client.first_op:
            check.begins(found, truth, ops, client.first_op)
        printed += check.losses(lines, (folder / f"output.{rank}").read_text(errors="replace"), client.printed)
        check.flops(found, expected, last_is_short=not client.first_op)
        check.aggregates(lines)
        if client.config and client.config.mode != "ddp":
            assert check.sizes(found, ops, sizes_of(client.config)) > 0
        steps, device_ns, node_ns = check.times(lines, found, truth, client.interrupted, CLOCK_NS)
        assert steps >= 2, f"{steps} steps were timed one after the other"
        check.confidence(lines, found, truth)
        notes.append(f"{len(found)} steps, {steps} timed {device_ns} ns, node {node_ns} ns")
    assert printed > 1, "the job printed no losses"
    kinds = sorted({(op["op"], op["nranks"], op["bytes"]) for lines in logs for op in check.of_type(lines, "op")})
    takes, launch_ns = in_child(node_times, kinds)
    node = dict(zip(kinds, takes))
    rates = check.busbw([check.of_type(lines, "op") for lines in logs], lambda *kind: node[kind], launch_ns + check.EVENT_NS)
    ratio = min(measured / modelled for _, measured, modelled in rates.values())
    return f"{notes[0]}; {printed} losses; {expected} FLOPs; busbw of {len(rates)} sizes ≥ {ratio:.3f} of the node's"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="all of them, and more steps")
    parser.add_argument("--only", action="append", help="this client; may be given again")
    parser.add_argument("--judge", type=pathlib.Path, help="do not run: look at what a run left in this folder")
    args = parser.parse_args()
    clients = {client.job.name.removeprefix("steps-"): client for client in (SHORT + LONG if args.long else SHORT)}
    if unknown := set(args.only or ()) - set(clients):
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(clients)}")
    for module in IMPORTS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    sweep = Sweep(pathlib.Path(tempfile.mkdtemp(prefix="steps-")))
    passed = failed = 0
    for name in args.only or clients:
        client = clients[name]
        if client.job.world > int(os.environ.get("B200OPT_VNODE_GPUS", 8)):
            parser.error(f"{name} needs {client.job.world} GPUs: dryrun --gpus {client.job.world}")
        if missing := [module for module in client.job.needs if importlib.util.find_spec(module) is None]:
            print(f"{name}: SKIP: needs {', '.join(missing)} (tests/e2e/requirements.txt)", flush=True)
            continue
        start = time.monotonic()
        environment = {"B200OPT_OPTIMIZER_HOOK": "1", "B200OPT_TIMING_EVERY": "1", **client.environment}
        try:
            if not args.judge:
                sweep.run(client.job, "eager", 0, name, before=watch(environment))
            print(f"{name}: {judge(client, (args.judge or sweep.folder) / name)}; {time.monotonic() - start:.0f} s", flush=True)
            passed += 1
        except AssertionError as error:
            print(f"{name}: FAILED: {error}\n  in {sweep.folder / name}", flush=True)
            failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
