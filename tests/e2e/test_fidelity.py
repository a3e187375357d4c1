# SPDX-License-Identifier: Apache-2.0
"""The virtual node trains like CPU PyTorch: the same script, seed and batches with --device cpu and gloo.

PyTorch refuses FSDP1 on CPU, so FSDP1 is held against FSDP2 there. The learning rate is calm on purpose: at a high one training
amplifies the last bit of a sum and every two implementations part.
"""
import pytest
import torch

from matrix import train

SMALL = ("--width", 64, "--layers", 2, "--seq", 64, "--batch", 4, "--lr", 3e-4)
WORLD = {"fsdp2": 2, "fsdp1": 2, "ddp": 2, "hsdp": 4}
ON_CPU = {"fsdp1": "fsdp2"}
LOSS_LIMIT = 2e-3
GRADIENT_LIMIT = 1e-5

every_mode = pytest.mark.parametrize("mode", WORLD)


def pair(lab, mode, name, *options, **extra):
    """The observed run on the node and the run on CPU."""
    reference = ON_CPU.get(mode, mode)

    def job(which):
        return train(f"{name}-{which}", "--mode", which, *SMALL, *options, world=WORLD[which], **extra)

    return lab.good(job(mode), "observe"), lab.good(job(reference), "cpu")


def losses(run):
    return [float.fromhex(v) for v in run.result["losses"]]


@every_mode
def test_bf16_losses_follow_cpu_for_100_steps(lab, mode, record_property):
    node, cpu = pair(lab, mode, "fidelity-bf16", steps=100)
    difference = max(abs(a - b) for a, b in zip(losses(node), losses(cpu), strict=True))
    record_property("max_loss_difference", difference)
    print(f"{mode}: largest loss difference {difference:.2e} in 100 steps, {losses(cpu)[0]:.3f} to {losses(cpu)[-1]:.3f}")
    print(f"{mode}: {node.result['steps_per_s']:.2f} steps/s on the node, {cpu.result['steps_per_s']:.2f} on CPU")
    assert losses(cpu)[-1] < losses(cpu)[0] - 0.5, "the reference did not learn: the comparison would show nothing"
    assert difference <= LOSS_LIMIT


@every_mode
def test_fp32_first_gradients_equal_cpu(lab, mode, record_property):
    runs = pair(lab, mode, "fidelity-fp32", "--dtype", "fp32", "--bias", "--save-grads", "{dir}/grads.pt", steps=1)
    node, cpu = (torch.load(run.folder / "grads.pt") for run in runs)
    assert node.keys() == cpu.keys() and len(cpu) > 20
    errors = {name: ((node[name] - cpu[name]).norm() / cpu[name].norm()).item() for name in cpu}
    worst = max(errors, key=errors.get)
    record_property("max_gradient_error", errors[worst])
    print(f"{mode}: largest relative gradient error {errors[worst]:.2e} ({worst})")
    assert errors[worst] <= GRADIENT_LIMIT
