# SPDX-License-Identifier: Apache-2.0
"""The client programs that the end-to-end tests run. Options of tools/demo_job/train.py are combined so that each is in one short job;
LONG_CLIENTS has them one by one."""
import dataclasses
import importlib.metadata
import importlib.util
import sys

import oracle
from conftest import HERE, ROOT, Job, execute

TRAIN = ROOT / "tools" / "demo_job" / "train.py"
EMULATION = HERE / "emulation.py"
JOBS = HERE / "jobs"
STEPS = 20


def train(name, *options, world=2, steps=STEPS, **extra):
    return Job(name, (TRAIN, "--out", "{out}", "--steps", steps, *options), world, **extra)


def config_of(job):
    """The oracle's configuration of a job made by train(), from its command line."""
    words = [str(w) for w in job.command]
    values = {}
    for name in ("mode", "width", "layers", "seq", "batch", "accum", "dtype", "norm", "dropout", "sdpa"):
        if f"--{name}" in words:
            text = words[words.index(f"--{name}") + 1]
            values[name] = type(getattr(oracle.Config, name))(text)
    return oracle.Config(world=job.world, bias="--bias" in words, ckpt="--ckpt" in words, **values)


def emulated(job, recipe):
    """The same training in emulation.py's arithmetic; for the arm cpu."""
    return dataclasses.replace(job, name=f"{job.name}-emulated-{recipe}", command=(EMULATION, "--recipe", recipe, *job.command[1:]))


def shuffled(job, seed):
    """The same training with the sums of each step in another order."""
    return dataclasses.replace(job, name=f"{job.name}-shuffled-{seed}", command=(EMULATION, "--shuffle", seed, *job.command[1:]))


def steps_of(job):
    words = [str(w) for w in job.command]
    return int(words[words.index("--steps") + 1])


# ---- plain training, whose counts the oracle knows
PLAIN = train("fsdp2", "--mode", "fsdp2")
BIAS_FUSED = train("fsdp2-bias-fused-rms", "--mode", "fsdp2", "--bias", "--optim", "fused", "--norm", "rms")
FSDP1_NO_SYNC = train("fsdp1-no-sync", "--mode", "fsdp1", "--accum", 2)
DDP_NO_SYNC = train("ddp-no-sync-foreach", "--mode", "ddp", "--accum", 2, "--optim", "foreach")
RECOMPUTE = train("fsdp2-recompute-dropout-math", "--mode", "fsdp2", "--ckpt", "--dropout", 0.1, "--sdpa", "math")
FP32_ACCUM = train("fsdp2-fp32-accum", "--mode", "fsdp2", "--dtype", "fp32", "--accum", 2, "--bias")
HSDP = train("hsdp-4-ranks", "--mode", "hsdp", "--width", 64, "--seq", 64, world=4)
COUNTED = [PLAIN, BIAS_FUSED, FSDP1_NO_SYNC, DDP_NO_SYNC, RECOMPUTE, FP32_ACCUM, HSDP]

# ---- a distributed checkpoint in the middle, and a second job that goes on from it
SAVED_STEP = 4
SAVE = train("checkpoint-save", "--save", "{shared}/checkpoint-{arm}", "--save-at", SAVED_STEP, steps=10)
RESUME = train("checkpoint-resume", "--resume", "{shared}/checkpoint-{arm}", steps=10, prepare=lambda lab, arm: lab.good(SAVE, arm))

# ---- DataLoader workers
LOADER_PLAIN = Job("loader-in-process", (JOBS / "loader.py", "--workers", 0, "--out", "{out}"))
LOADERS = [
    Job(f"loader-{method}", (JOBS / "loader.py", "--workers", 2, "--start-method", method, "--out", "{out}")) for method in ("fork", "spawn")
]

# ---- other people's trainers
HF_TRAINERS = [
    Job(
        f"hf-trainer-fsdp{version}",
        (JOBS / "hf_trainer.py", "--fsdp-version", version, "--steps", 10, "--dir", "{dir}/trainer", "--out", "{out}"),
        needs=("transformers", "accelerate"),
    )
    for version in (1, 2)
]


def titan_assets(lab, arm):
    folder = lab.shared / "titan"
    if not folder.exists():
        folder.mkdir()
        status, _, stderr = execute([sys.executable, str(JOBS / "titan_assets.py"), str(folder)], folder)
        assert status == 0, stderr


def titan_losses(folder):
    """torchtitan prints five decimals; its TensorBoard file has the whole number."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.glob("outputs/**/events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()

    def series(tag):
        return [float(e.value).hex() for e in accumulator.Scalars(tag)]

    return {"losses": series("loss_metrics/global_avg_loss"), "grad_norms": series("grad_norm")}


# Options that torchtitan's releases name differently. 0.3 needs a newer PyTorch than the newest of CUDA 12.
TITAN_OPTIONS = {
    "0.2": (
        *("--model.name", "llama3", "--model.flavor", "debugmodel", "--model.hf-assets-path", "{shared}/titan/tokenizer"),
        *("--training.dataset-path", "{shared}/titan/data", "--job.dump-folder", "{dir}/outputs", "--metrics.log-freq", 1),
    ),
    "0.3": (
        *("--module", "llama3", "--config", "llama3_debugmodel", "--hf-assets-path", "{shared}/titan/tokenizer"),
        *("--dataloader.dataset-path", "{shared}/titan/data", "--dump-folder", "{dir}/outputs"),
        *("--training.disable-cuda-graphs", "--debug.no-enable-structured-logging"),
    ),
}
TITAN_VERSION = importlib.metadata.version("torchtitan")[:3] if importlib.util.find_spec("torchtitan") else "0.3"
TITAN = Job(
    "torchtitan-debug-model",
    (
        *("-m", "torchtitan.train", *TITAN_OPTIONS[TITAN_VERSION]),
        *("--metrics.enable-tensorboard", "--metrics.disable-color-printing"),
        *("--training.steps", 4, "--training.seq-len", 128, "--training.local-batch-size", 2, "--debug.seed", 0),
    ),
    needs=("torchtitan", "tensorboard"),
    prepare=titan_assets,
    collect=titan_losses,
)

# What one more PyTorch is tried with on every run.
BRIEF = [PLAIN, FSDP1_NO_SYNC, DDP_NO_SYNC, HF_TRAINERS[1]]

CLIENTS = [*COUNTED, SAVE, RESUME, *LOADERS, *HF_TRAINERS, TITAN]

LONG_CLIENTS = [
    train("long-fsdp2-bias", "--bias", steps=60),
    train("long-fsdp2-fused", "--optim", "fused", steps=60),
    train("long-fsdp2-foreach", "--optim", "foreach", steps=60),
    train("long-fsdp2-rms", "--norm", "rms", steps=60),
    train("long-fsdp2-flash", "--sdpa", "flash", steps=60),
    train("long-fsdp2-efficient", "--sdpa", "efficient", steps=60),
    train("long-fsdp2-math", "--sdpa", "math", steps=60),
    train("long-fsdp2-recompute", "--ckpt", steps=60),
    train("long-fsdp2-dropout", "--dropout", 0.1, steps=60),
    train("long-fsdp2-fp32", "--dtype", "fp32", steps=60),
    train("long-fsdp2-accum", "--accum", 4, steps=60),
    train("long-fsdp1", "--mode", "fsdp1", steps=60),
    train("long-ddp", "--mode", "ddp", steps=60),
    train("long-fsdp2-4-ranks", world=4, steps=60),
    train("long-fsdp2-8-ranks", "--batch", 1, world=8, steps=10),
]
