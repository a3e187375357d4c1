# SPDX-License-Identifier: Apache-2.0
"""What `b200opt sagemaker metrics` prints is within SageMaker's limits and reads what jobs print, and only that, also when eight
ranks share one pipe whose reader cuts it anywhere."""
import json
import os
import pathlib
import re
import subprocess

import pytest

BUILD = pathlib.Path(os.environ["B200_BUILD"])
HERE = pathlib.Path(os.environ["B200_HERE"])
WRITERS, LINES = 8, 2000
CHUNK = 64 << 10  # what the training toolkit reads at once

# Line, the definition that must read it, the value. "" for lines of evaluations and the like, which none may read.
PRINTED = [
    ("{'loss': 2.31, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.1}", "huggingface", 2.31),
    ("{'loss': '2.31', 'grad_norm': '1.0', 'epoch': '0.1'}", "huggingface", 2.31),
    ('{"loss": 1e-3, "step": 3}', "huggingface", 1e-3),
    ("\x1b[31mstep:  1  \x1b[32mloss:  8.1234  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[36mtps: 1,234", "torchtitan", 8.1234),
    ("[titan] 2026-01-01 00:00:00,000 - root - INFO - step: 10  loss:  3.2  grad_norm: 1.0  memory:  1.0GiB", "torchtitan", 3.2),
    (" [2026-01-01] iteration       10/     100 | consumed samples: 160 | lm loss: 6.543210E+00 | loss scale: 1.0 |", "megatron", 6.54321),
    ("Epoch 0:  10%|#         | 1/10 [00:01<00:09,  1.00it/s, v_num=0, train_loss_step=2.310]", "lightning", 2.31),
    ("Epoch 0: 100%|##########| 10/10 [00:01<00:00, v_num=0, train_loss=2.250]", "lightning", 2.25),
    ("Epoch 1 | iter 16 step 2 | loss train: 10.523, val: n/a | iter time: 100 ms (step)", "litgpt", 10.523),
    ("step 3 loss 2.31 grad_norm 1.2 tokens/s 1234", "generic", 2.31),
    ("iter 10: loss 2.3100, time 12.00ms, mfu 40.00%", "generic", 2.31),
    ("step 4, loss=2.5", "generic", 2.5),
    ("[1,mpirank:0,algo-1]<stdout>:step 5: loss: 2.25", "generic", 2.25),
    ("{'eval_loss': 2.5, 'eval_runtime': 1.0, 'epoch': 1.0}", "", None),
    ("step 250: train loss 2.31, val loss 2.45", "", None),
    ("validation loss at iteration 10 | lm loss value: 6.5E+00 | lm loss PPL: 6.6E+02 |", "", None),
    ("val_loss=2.4", "", None),
    ("INFO - validate step: 10  loss:  3.2", "", None),
    ("a lossless codec at step 3", "", None),
]


def definitions():
    out = subprocess.run([BUILD / "b200opt", "sagemaker", "metrics"], capture_output=True, text=True, check=True, timeout=60)
    assert out.stderr == "" and out.stdout.isascii()
    return json.loads(out.stdout)


def by_name():
    return {d["Name"]: d["Regex"] for d in definitions()}


def test_the_limits_of_sagemaker():
    all_definitions = definitions()
    assert 10 < len(all_definitions) <= 40
    assert len({d["Name"] for d in all_definitions}) == len(all_definitions)
    for d in all_definitions:
        assert set(d) == {"Name", "Regex"} and 1 <= len(d["Name"]) <= 255 and 1 <= len(d["Regex"]) <= 500
        assert not d["Regex"].startswith("^") and not d["Regex"].endswith("$") and re.compile(d["Regex"]).groups >= 1


@pytest.mark.parametrize("line, form, value", PRINTED)
def test_lines_of_training_programs(line, form, value):
    found = {name.removeprefix("loss:"): float(m[1]) for name, regex in by_name().items() if (m := re.search(regex, line))}
    if form:
        assert found.get(form) == value, found
    assert set(found.values()) <= {value}, "another value in the same line"


def test_the_library_reads_the_same_with_the_same_expressions():
    """B200OPT_LOSS_REGEX takes each of them, and the built-in forms find the same."""
    text = "".join(line + "\n" for line, _, _ in PRINTED)

    def scan(*arguments):
        out = subprocess.run([HERE / "metrics_scan_loss", *arguments], input=text, capture_output=True, text=True, timeout=60)
        assert out.returncode == 0, out.stderr
        return [None if word == "-" else float(word) for word in out.stdout.split()]

    assert [v for v, (_, form, _) in zip(scan(), PRINTED) if form] == [value for _, form, value in PRINTED if form]
    for name, regex in by_name().items():
        wanted = [float(m[1]) if (m := re.search(regex, line)) else None for line, _, _ in PRINTED]
        assert scan(regex) == wanted, name


@pytest.fixture(scope="module")
def pipe():
    """What arrives when eight processes print lines of metrics to one pipe, in the pieces in which it was read."""
    reader, writer = os.pipe()
    children = [subprocess.Popen([HERE / "metrics_print_lines", str(i + 1), str(LINES)], stdout=writer) for i in range(WRITERS)]
    os.close(writer)
    chunks = []
    while chunk := os.read(reader, CHUNK):
        chunks.append(chunk)
    os.close(reader)
    assert [child.wait(60) for child in children] == [0] * WRITERS
    return chunks


def is_loss(loss, step):
    """As print_lines makes it: WRITER.STEP, of which no beginning is right for the same step."""
    return 1 <= int(loss) <= WRITERS and loss == pytest.approx(int(loss) + step * 1e-5, abs=1e-9)


def test_no_line_is_torn(pipe):
    regexes = {name: re.compile(regex) for name, regex in by_name().items() if name.startswith("b200opt:")}
    next_line = [1] * WRITERS
    lines = b"".join(pipe).decode("ascii").split("\n")
    assert lines.pop() == ""
    shape = re.compile("b200opt:(?: [a-z_]+=[-+.0-9e]+;)+")
    for line in lines:
        assert shape.fullmatch(line), line
        values = {name: float(regex.search(line)[1]) for name, regex in regexes.items()}
        writer = int(values["b200opt:loss"]) - 1
        assert values["b200opt:step"] == next_line[writer] and is_loss(values["b200opt:loss"], values["b200opt:step"])
        next_line[writer] += 1
    assert next_line == [LINES + 1] * WRITERS
    switches = sum(re.search("loss=(.)", a)[1] != re.search("loss=(.)", b)[1] for a, b in zip(lines, lines[1:]))
    assert switches > WRITERS, "the writers did not meet"


def scales():
    """Factor from the value that print_lines sets to the one in the line."""
    text = subprocess.run([HERE / "metrics_print_lines", "1", "1"], capture_output=True, text=True, check=True).stdout
    return {name: float(value) for name, value in re.findall(r"(\w+)=([-+.0-9e]+);", text)}


@pytest.mark.parametrize("size", [CHUNK, 4096, 1000, 61])
def test_a_reader_that_cuts_lines_reads_no_wrong_number(pipe, size):
    """The toolkit: read, strip, split at newlines. A line that is cut there loses values; it yields none that was not printed."""
    data, scale = b"".join(pipe).decode("ascii"), scales()
    data = data[: 1 << 20 if size > 100 else 1 << 17]
    regexes = {name.removeprefix("b200opt:"): re.compile(regex) for name, regex in by_name().items() if name.startswith("b200opt:")}
    found = dict.fromkeys(regexes, 0)
    for at in range(0, len(data), size):
        for line in data[at : at + size].strip().split("\n"):
            values = {name: m[1] for name, regex in regexes.items() if (m := regex.search(line))}
            for name, value in values.items():
                found[name] += 1
                step = float(values["step"])  # it comes first in a line
                if name == "loss":
                    assert is_loss(float(value), step), line
                else:
                    assert float(value) == pytest.approx(step * scale[name], rel=1e-6, abs=1e-3), line
    lines, cuts = data.count("\n") + 1, len(data) // size + 1  # the last line may have been cut, and lose nothing
    if size > 1000:
        assert all(lines - cuts - 2 <= count <= lines for count in found.values()), (lines, cuts, found)
