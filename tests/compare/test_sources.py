# SPDX-License-Identifier: Apache-2.0
"""What is read of an arm: every form of input, whole and damaged, against what is known of it. dump_arm prints it."""
import json
import math
import os
import shutil
import struct
import subprocess

import pytest

DUMP = os.environ["B200_DUMP_ARM"]
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "compare")
NAN = float("nan")


def number(value):
    return float(value) if isinstance(value, str) else value


def read(path, tag=None):
    """→ (runs, notes, error) of the arm; points as [(step, loss, grad_norm, tokens/s, t)]."""
    done = subprocess.run([DUMP, str(path)] + ([tag] if tag else []), capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 1), done.stderr
    arm = json.loads(done.stdout)
    assert (arm["error"] is None) == (done.returncode == 0) == bool(arm["runs"])
    for run in arm["runs"]:
        run["points"] = [(p[0],) + tuple(number(v) for v in p[1:]) for p in run["points"]]
    for line in arm["notes"] + [n for r in arm["runs"] for n in r["notes"]] + ([arm["error"]] if arm["error"] else []):
        assert "\n" not in line and line.isprintable()
    return arm["runs"], arm["notes"], arm["error"]


def one(path, tag=None):
    runs, _, error = read(path, tag)
    assert error is None and len(runs) == 1, (error, runs)
    return runs[0]


def wrong(path, tag=None):
    runs, _, error = read(path, tag)
    assert runs == []
    return error


def losses(run):
    return [(p[0], p[1]) for p in run["points"]]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def curve(i):
    return 4.0 / (1 + 0.1 * i) + 0.01 * (i % 3)


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


# ---- TensorBoard


def test_tensorboard_simple_values():
    run = one(DATA + "/tensorboard/plain")
    assert run["source"] == "tensorboard" and run["loss_name"] == "train/loss" and run["decimals"] == -1
    assert run["name"] == "plain"
    assert run["points"] == [(i, f32(curve(i)), f32(1.0 / i), 0, 0.5 * (i - 1)) for i in range(1, 21)]


def test_tensorboard_tensors():
    assert losses(one(DATA + "/tensorboard/tensor")) == [(i, f32(curve(i))) for i in range(1, 21)]
    assert losses(one(DATA + "/tensorboard/tensor", "loss64")) == [(i, curve(i)) for i in range(1, 21)]


def test_tensorboard_resumed_into_a_second_file():
    run = one(DATA + "/tensorboard/resumed")
    assert losses(run) == [(i, f32(curve(i) + (0.5 if i > 10 else 0))) for i in range(1, 21)]
    assert run["resumes"] == 1 and run["notes"] == ["continued 1 times, last from step 11"]
    # 15 s of the first, of which the first second is not seen, then the second's own; not the pause between
    assert [p[4] for p in run["points"]] == [i - 1 for i in range(1, 11)] + [14 + i - 11 for i in range(11, 21)]


def test_tensorboard_without_a_loss_lists_its_tags():
    path = DATA + "/tensorboard/other"
    assert wrong(path).endswith("no tag is known as a loss (there are: perplexity/ce, lr); name one with --tag")
    assert wrong(path, "missing").endswith("no tag 'missing' (there are: perplexity/ce, lr)")
    assert losses(one(path, "perplexity/ce")) == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_tensorboard_folders_are_runs():
    runs, _, _ = read(DATA + "/tensorboard")
    assert [r["name"] for r in runs] == ["plain", "resumed", "tensor"]


def plain_bytes():
    folder = DATA + "/tensorboard/plain"
    with open(os.path.join(folder, os.listdir(folder)[0]), "rb") as file:
        return file.read()


def test_tensorboard_cut_anywhere(tmp_path):
    """Every prefix is right about its whole records, and says so."""
    whole = plain_bytes()
    counts = []
    for length in list(range(13, 700, 7)) + [len(whole) - 1]:
        runs, _, error = read(write(tmp_path / "cut", whole[:length]))
        points = losses(runs[0]) if runs else []
        assert points == [(i, f32(curve(i))) for i in range(1, len(points) + 1)]
        assert points or "without scalars" in error or "no tag is known" in error
        counts.append(len(points))
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 20
    run = one(tmp_path / "cut")
    assert run["notes"] == [f"{tmp_path}/cut: it is cut off or damaged: what comes before that counts"]


def test_tensorboard_damaged_record_is_skipped(tmp_path):
    data = bytearray(plain_bytes())
    place = data.find(b"train/loss", data.find(b"train/loss") + 1)
    data[place] ^= 1
    run = one(write(tmp_path / "damaged", bytes(data)))
    assert [p[0] for p in run["points"]] == [1] + list(range(3, 21))
    assert run["notes"] == [f"{tmp_path}/damaged: 1 damaged records are skipped"]


# ---- Hugging Face, Lightning: real files


def test_huggingface_folder():
    run = one(DATA + "/huggingface")
    state = json.load(open(DATA + "/huggingface/trainer_state.json"))
    expected = [(e["step"], f32(e["loss"])) for e in state["log_history"] if "loss" in e]
    assert losses(run) == expected and len(expected) == 60
    assert run["source"] == "tensorboard" and run["resumes"] == 1
    assert run["name"] == "runs/first" and run["notes"] == ["runs/second continues it from step 41"]
    times = [p[4] for p in run["points"]]
    assert times == sorted(times) and times[0] == 0
    assert [p[2] for p in run["points"]] == [f32(e["grad_norm"]) for e in state["log_history"] if "loss" in e]


def test_huggingface_state():
    run = one(DATA + "/huggingface/trainer_state.json")
    assert run["source"] == "trainer_state" and len(run["points"]) == 60 and run["decimals"] == -1
    evaluated = one(DATA + "/huggingface/trainer_state.json", "eval_loss")
    assert [p[0] for p in evaluated["points"]] == list(range(10, 61, 10))
    error = wrong(DATA + "/huggingface/trainer_state.json", "nothing")
    assert "its log_history has no 'nothing' (there are: " in error and "loss" in error


def test_huggingface_output():
    """Evaluation and the summary between; no steps in its lines."""
    run = one(DATA + "/huggingface/job.out")
    state = json.load(open(DATA + "/huggingface/trainer_state.json"))
    expected = [e["loss"] for e in state["log_history"] if "loss" in e][:40]
    assert [p[0] for p in run["points"]] == list(range(1, 41))
    assert all(math.isclose(p[1], e, rel_tol=5e-4) for p, e in zip(run["points"], expected))
    assert run["notes"] == [f"{DATA}/huggingface/job.out: its losses come without steps: they are numbered 1, 2, ..."]


def test_huggingface_checkpoints_are_one_run(tmp_path):
    state = json.load(open(DATA + "/huggingface/trainer_state.json"))
    for step in (20, 100, 60):
        part = dict(state, log_history=[e for e in state["log_history"] if e["step"] <= step], global_step=step)
        write(tmp_path / f"checkpoint-{step}" / "trainer_state.json", json.dumps(part))
        write(tmp_path / f"checkpoint-{step}" / "model.safetensors", os.urandom(1000))
    run = one(tmp_path)
    assert len(run["points"]) == 60 and run["resumes"] == 0


def test_lightning_table():
    run = one(DATA + "/lightning/metrics.csv")
    assert run["source"] == "csv" and run["loss_name"] == "train_loss" and [p[0] for p in run["points"]] == list(range(30))


def test_lightning_progress_bar():
    """Each state is drawn twice, first with the loss of the step before; an epoch begins with the last loss of the one before."""
    table, run = one(DATA + "/lightning/metrics.csv"), one(DATA + "/lightning/job.out")
    assert [p[0] for p in run["points"]] == list(range(1, 31)) and run["resumes"] == 0
    assert all(math.isclose(p[1], t[1], rel_tol=2e-2) for p, t in zip(run["points"], table["points"]))


# ---- printed output


TITAN = ("[rank0]:[titan] 2025-10-01 10:00:00,123 - root - INFO - \033[31mstep:  {step}  \033[32mloss:  {loss:.4f}  "
         "\033[38;2;180;60;0mgrad_norm:  1.5000  \033[36mmemory:  0.50GiB(0.28%)  \033[34mtps: 1,234,567  \033[36mtflops: 0.10\033[39m\n")
MEGATRON = (" [2025-10-01 10:00:00] iteration {step:8d}/     100 | consumed samples:          160 | elapsed time per iteration "
            "(ms): 513.2 | learning rate: 1.5E-04 | global batch size:    16 | lm loss: {loss:.6E} | loss scale: 1.0 | "
            "grad norm: 1.500 | number of skipped iterations:   0 |\n")
PLAIN = "step {step} loss {loss:.4f} grad_norm 1.5 tokens/s 512\n"


@pytest.mark.parametrize("form, rate, decimals", [(TITAN, 1234567, 4), (MEGATRON, 0, 6), (PLAIN, 512, 4)])
def test_printed_forms(tmp_path, form, rate, decimals):
    """ANSI colours, thousands separators, scientific notation; evaluation lines between; four printed decimals."""
    text = "".join(form.format(step=i, loss=curve(i)) + (f"validate step: {i} loss: 9.0\n" if i % 10 == 0 else "")
                   for i in range(1, 31))
    run = one(write(tmp_path / "job.out", "starting\n" + text))
    assert [p[0] for p in run["points"]] == list(range(1, 31)) and run["source"] == "output"
    assert all(abs(p[1] - curve(p[0])) <= 0.5 * 10 ** -4 and p[2] == 1.5 and p[3] == rate for p in run["points"])
    assert 4 <= run["decimals"] <= decimals and run["loss_ranks"] == 1


def test_every_tenth_step(tmp_path):
    run = one(write(tmp_path / "log.txt", "".join(PLAIN.format(step=i, loss=curve(i)) for i in range(10, 301, 10))))
    assert [p[0] for p in run["points"]] == list(range(10, 301, 10))


def test_zero_and_nonfinite_losses(tmp_path):
    run = one(write(tmp_path / "a", "step 1 loss 0.0\nstep 2 loss 0.0\nstep 3 loss nan\nstep 4 loss inf\nstep 5 loss -inf\n"))
    assert losses(run)[:2] == [(1, 0.0), (2, 0.0)] and math.isnan(run["points"][2][1])
    assert losses(run)[3:] == [(4, math.inf), (5, -math.inf)] and run["decimals"] == 0


@pytest.mark.parametrize("label", ["[rank{r}]: ", "[default{r}]:", "{r}: ", "[1,{r}]<stdout>:", "rank {r} | ", "Rank={r} "])
def test_two_labelled_ranks(tmp_path, label):
    """Interleaved in any order and with different values: the mean over ranks."""
    lines = [[label.format(r=r) + PLAIN.format(step=i, loss=curve(i) + r) for i in range(1, 21)] for r in (0, 1)]
    text = "".join(lines[0][:7] + lines[1][:15] + lines[0][7:] + lines[1][15:])
    run = one(write(tmp_path / "job.out", text))
    assert run["loss_ranks"] == 2 and run["resumes"] == 0
    assert all(math.isclose(p[1], round(curve(p[0]), 4) + 0.5, rel_tol=1e-12) for p in run["points"])


def test_two_unlabelled_ranks(tmp_path):
    text = "".join(PLAIN.format(step=i + d, loss=curve(i + d) + r) for i in range(1, 40, 2) for r in (0, 1) for d in (0, 1))
    run = one(write(tmp_path / "job.out", text))
    assert run["loss_ranks"] == 2 and [p[0] for p in run["points"]] == list(range(1, 41))
    assert all(math.isclose(p[1], round(curve(p[0]), 4) + 0.5, rel_tol=1e-12) for p in run["points"])
    assert run["notes"] == ["2 ranks print losses without saying which: the mean of a step counts"]


def test_ranks_that_agree_give_the_value_to_the_bit(tmp_path):
    text = "".join(f"[rank{r}]: step {i} loss {curve(i)!r}\n" for i in range(1, 21) for r in range(3))
    assert losses(one(write(tmp_path / "a", text))) == [(i, curve(i)) for i in range(1, 21)]


def test_a_rank_that_says_little_is_left_out(tmp_path):
    text = "".join(f"[rank0]: step {i} loss {curve(i)!r}\n" for i in range(1, 21)) + "[rank1]: step 3 loss 99\n"
    run = one(write(tmp_path / "a", text))
    assert losses(run) == [(i, curve(i)) for i in range(1, 21)] and run["loss_ranks"] == 1 and len(run["notes"]) == 1


def test_resumed_in_one_file(tmp_path):
    """Steps 16..30 are done again from 16 on; the run before had reached 25, logged every step."""
    first = "".join(f"step {i} loss {curve(i)!r}\n" for i in range(1, 26))
    second = "".join(f"step {i} loss {curve(i) + 1!r}\n" for i in range(16, 31))
    run = one(write(tmp_path / "a", first + "restarting\n" + second))
    assert losses(run) == [(i, curve(i) + (i > 15)) for i in range(1, 31)] and run["resumes"] == 1


def test_resumed_and_ended_earlier(tmp_path):
    """What the first branch did beyond the end of the second is no part of the run any more."""
    first = "".join(f"step {i} loss {curve(i)!r}\n" for i in range(1, 26))
    second = "".join(f"step {i} loss {curve(i) + 1!r}\n" for i in range(16, 21))
    assert losses(one(write(tmp_path / "a", first + second))) == [(i, curve(i) + (i > 15)) for i in range(1, 21)]


def test_a_late_mention_does_not_end_the_curve(tmp_path):
    text = "".join(f"step {i} loss {curve(i)!r}\n" for i in range(1, 26)) + f"the lowest loss {curve(5)!r} was at step 5\n"
    run = one(write(tmp_path / "a", text))
    assert losses(run) == [(i, curve(i)) for i in range(1, 26)] and run["resumes"] == 0


def test_resumed_into_other_files(tmp_path):
    """Of three files two are one run; runs that both start at the beginning stay two."""
    write(tmp_path / "seed0.log", "".join(f"step {i} loss {curve(i)!r}\n" for i in range(1, 26)))
    write(tmp_path / "seed0-again.log", "".join(f"step {i} loss {curve(i) + 1!r}\n" for i in range(21, 41)))
    write(tmp_path / "seed1.log", "".join(f"step {i} loss {curve(i) + 2!r}\n" for i in range(1, 41)))
    runs, _, _ = read(tmp_path)
    assert [r["name"] for r in runs] == ["seed0.log", "seed1.log"]
    assert losses(runs[0]) == [(i, curve(i) + (i > 20)) for i in range(1, 41)]
    assert runs[0]["resumes"] == 1 and runs[1]["resumes"] == 0


def test_incomplete_last_line(tmp_path):
    run = one(write(tmp_path / "a", "step 1 loss 2.5\nstep 2 loss 2.25\nstep 3 loss 2.1"))
    assert losses(run) == [(1, 2.5), (2, 2.25)] and run["notes"] == [f"{tmp_path}/a: the last line has no end and is left out"]
    run = one(write(tmp_path / "b.csv", "step,loss\n1,2.5\n2,2.25\n3,2.1"))
    assert losses(run) == [(1, 2.5), (2, 2.25)] and run["notes"] == [f"{tmp_path}/b.csv: the last line has no end and is left out"]


def test_incomplete_last_state_of_a_bar(tmp_path):
    run = one(write(tmp_path / "a", "step 1 loss 3\rstep 2 loss 2\rstep 3 loss 1.2"))
    assert losses(run) == [(1, 3.0), (2, 2.0)] and len(run["notes"]) == 1


def test_a_step_printed_again_counts_as_printed_last(tmp_path):
    text = "".join(f"step {i} loss {curve(i)!r}\n" for i in range(1, 21))
    run = one(write(tmp_path / "a", text.replace("step 8 ", "step 8 loss 9.5\nstep 8 ")))
    assert losses(run) == [(i, curve(i)) for i in range(1, 21)]


def test_runs_of_different_length_stay_apart(tmp_path):
    """Shifted by one step, too; and a run that begins far beyond the end of another is none of its resumes."""
    for name, steps in (("a", range(1, 26)), ("b", range(1, 41)), ("c", range(2, 61)), ("d", range(200, 230))):
        write(tmp_path / f"{name}.log", "".join(f"step {i} loss {curve(i)!r}\n" for i in steps))
    runs, _, _ = read(tmp_path)
    assert [(r["name"], r["points"][0][0], r["points"][-1][0]) for r in runs] == [
        ("a.log", 1, 25), ("b.log", 1, 40), ("c.log", 2, 60), ("d.log", 200, 229)]


def test_torchrun_folders(tmp_path):
    for attempt, steps in ((0, range(1, 21)), (1, range(11, 31))):
        for rank in (0, 1):
            write(tmp_path / "job" / f"attempt_{attempt}" / str(rank) / "stdout.log",
                  "".join(f"step {i} loss {curve(i) + attempt + rank!r}\n" for i in steps))
    run = one(tmp_path)
    assert run["loss_ranks"] == 2 and [p[0] for p in run["points"]] == list(range(1, 31))
    assert all(math.isclose(p[1], curve(p[0]) + 0.5 + (p[0] > 10)) for p in run["points"])


def test_json_lines_of_others(tmp_path):
    run = one(write(tmp_path / "metrics.jsonl", "".join(json.dumps({"step": i, "loss": curve(i)}) + "\n" for i in range(1, 9))))
    assert losses(run) == [(i, curve(i)) for i in range(1, 9)]


# ---- tables


def test_csv_forms(tmp_path):
    expected = [(1, 2.5, 0.5), (2, 1234.5, 0.25), (3, 2.0, 0.125)]
    forms = ['step,loss,grad_norm\n1,2.5,0.5\n2,"1,234.5",0.25\n3,2.0,0.125\n',
             "# a comment\n\nIteration;Train Loss;Grad Norm\n1;2,5;0,5\n2;1.234.5;0,25\n2;1234,5;0,25\n3;2,0;0,125\n",
             "\ufeffglobal_step\ttrain/loss\tgnorm\r\n1\t2.5\t0.5\r\n2\t1,234.5\t0.25\r\n3\t2.0\t0.125\r\n",
             '"Step","a run - train/loss","a run - train/loss__MIN","a run - train/grad_norm"\n"1","2.5","0","0.5"\n'
             '"2","1234.5","0","0.25"\n"3","2","0","0.125"\n']
    for i, text in enumerate(forms):
        run = one(write(tmp_path / f"{i}", text))
        assert run["source"] == "csv" and [p[:3] for p in run["points"]] == expected, text
    run = one(write(tmp_path / "t", "Wall time,Step,Value\n1700000000.5,1,2.5\n1700000001.5,2,2.25\n"))
    assert run["points"] == [(1, 2.5, pytest.approx(NAN, nan_ok=True), 0, 0), (2, 2.25, pytest.approx(NAN, nan_ok=True), 0, 1)]


def test_csv_rows(tmp_path):
    run = one(write(tmp_path / "a", "step,loss,val_loss\n1,2.5,\n1,,9\n2,nan,\n3,oops,\n4,2.0,\n"))
    assert [p[0] for p in run["points"]] == [1, 2, 4] and math.isnan(run["points"][1][1])
    assert run["notes"] == [f"{tmp_path}/a: 1 rows have no number where one should be and are left out"]
    run = one(write(tmp_path / "b", "loss\n2.5\n2.25\n"))
    assert losses(run) == [(1, 2.5), (2, 2.25)] and len(run["notes"]) == 1


def test_csv_without_a_loss(tmp_path):
    path = write(tmp_path / "a", "step,accuracy,lr\n1,0.5,0.1\n")
    assert wrong(path) == f"{path}: no column is known as a loss (there are: step, accuracy, lr); name one with --tag"
    assert wrong(path, "x") == f"{path}: no column 'x' (there are: step, accuracy, lr)"
    assert losses(one(path, "accuracy")) == [(1, 0.5)]
    assert wrong(write(tmp_path / "b", "step,loss\n")) == f"{tmp_path}/b: no row with a loss"


# ---- trainer_state.json


def test_trainer_state_with_nonfinite_numbers(tmp_path):
    history = [{"step": 1, "loss": 2.5, "grad_norm": NAN}, {"step": 2, "loss": NAN}, {"step": 3, "loss": math.inf},
               {"step": 4, "loss": -math.inf, "note": "NaN, \"Infinity\""}]
    for text in (json.dumps({"log_history": history}, indent=2), json.dumps(history)):
        run = one(write(tmp_path / "any.name", text))
        assert run["source"] == "trainer_state" and math.isnan(run["points"][1][1])
        assert [p[1] for p in run["points"] if not math.isnan(p[1])] == [2.5, math.inf, -math.inf]


def test_trainer_state_cut_off(tmp_path):
    text = open(DATA + "/huggingface/trainer_state.json", "rb").read()
    assert ": not whole JSON: line " in wrong(write(tmp_path / "a", text[:5000]))
    assert wrong(write(tmp_path / "b", '{"log_history": []}')) == f"{tmp_path}/b: its log_history is empty"


# ---- logs


def log_of(rank=0, run="r", steps=20, unix_ns=10**18, begin=0, more=0.0, losses_too=True, node=False, first=0, config=None):
    lines = [dict(t="header", format=1, producer="vnode 1" if node else "b200opt 1", run=run, arm="", host="h", pid=100 + rank,
                  rank=rank, world=2, local_rank=rank, t_ns=10**9, unix_ns=unix_ns, versions={"nccl": 5}, gpu="B200",
                  config=config or {}, nccl_env={})]
    for i in range(steps):
        lines.append(dict(t="step", gen=1, step=i, source="coll", period=4, t_ns=10**9 + i * 10**9,
                          dur_ns=10**9 + 10**6 * (rank == i % 2), gemm_calls=1, gemm_flops=77, coll_calls=4, coll_bytes=1,
                          alloc_calls=0, hbm={"pytorch": 5}, hbm_used=-1))
        lines.append(dict(t="time", gen=1, step=i, t_ns=10**9, dev_ns=9 * 10**8 + 10**6 * (1 - rank), colls=4, comm_ns=4 * 10**8,
                          busy_ns=3 * 10**8, blocked_ns=(1 + rank) * 10**8, queued_ns=0, gemms=i % 2, gemm_ns=5 * 10**8,
                          uncovered_ns=-1, host_ns=10**7, start_ns=0, starved=0))
        if losses_too:
            lines.append(dict(t="loss", step=first + i, loss=curve(first + i) + more, tokens_per_s=5, t_ns=10**9 + (i + 1) * 10**9,
                              grad_norm=1.5))
    lines.append(dict(t="mark", gen=1, step=0, what="first", count=1))
    lines.append(dict(t="end", t_ns=1))
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def test_logs_of_ranks(tmp_path):
    for rank in (0, 1):
        write(tmp_path / "r" / f"h-r{rank}-1.jsonl", log_of(rank, losses_too=rank == 0))
    run = one(tmp_path)
    assert run["source"] == run["loss_source"] == "b200opt" and run["name"] == "r" and not run["partial"]
    assert (run["ranks"], run["world"], run["loss_ranks"], run["gemm_flops"], run["logs"]) == (2, 2, 1, 77, 2)
    assert run["points"] == [(i, curve(i), 1.5, 5, i + 1) for i in range(20)]
    assert [s["step"] for s in run["steps"]] == list(range(20)) and not run["modelled"]
    for i, step in enumerate(run["steps"]):
        assert step["host"] == pytest.approx(1.001)  # the ranks are slower in turns
        assert step["device"] == pytest.approx(0.901) and step["blocked"] == pytest.approx(0.1)  # rank 0's, which is longer
        assert step["comm"] == pytest.approx(0.3) and step["first"] == (i == 0)
        assert step["gemm"] == (pytest.approx(0.5) if i % 2 else "nan")
        assert step["starved"] == (pytest.approx(0.01) if i % 2 else "nan")
    assert run["facts"]["versions"] == {"nccl": 5} and run["facts"]["gpu"] == "B200"


def test_logs_of_ranks_that_both_print(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"{rank}.jsonl", log_of(rank, more=float(rank)))
    run = one(tmp_path)
    assert run["loss_ranks"] == 2 and all(p[1] == pytest.approx(curve(p[0]) + 0.5) for p in run["points"])


def test_logs_of_a_resumed_run(tmp_path):
    """Several files of one run: torchrun's restart keeps the name. Times are those of running."""
    write(tmp_path / "a.jsonl", log_of(steps=15, unix_ns=10**18))
    write(tmp_path / "b.jsonl", log_of(steps=10, unix_ns=2 * 10**18, first=10, more=1.0))
    run = one(tmp_path)
    assert losses(run) == [(i, curve(i) + (i > 9)) for i in range(20)] and run["resumes"] == 1
    assert [s["step"] for s in run["steps"]] == list(range(25)) and [s["step"] for s in run["steps"] if s["first"]] == [0, 15]
    assert run["points"][10][4] == pytest.approx(16.001) and run["ended_s"] == pytest.approx(25.001)


def test_runs_by_name_and_by_folder(tmp_path):
    for run in ("one", "two"):
        write(tmp_path / "named" / f"{run}.jsonl", log_of(run=run))
    assert [r["name"] for r in read(tmp_path / "named")[0]] == ["one", "two"]
    for i in (1, 2, 10):
        write(tmp_path / "ab" / f"run-{i}" / "x" / "0.jsonl", log_of(run="same", more=float(i), first=10 * i))
        write(tmp_path / "ab" / f"run-{i}" / "job.out", "step 1 loss 9\nstep 2 loss 9\n")
    write(tmp_path / "ab" / "a-note.txt", "nothing\n")
    runs, _, _ = read(tmp_path / "ab")
    assert [r["name"] for r in runs] == ["run-1", "run-2", "run-10"] and all(r["loss_source"] == "b200opt" for r in runs)
    assert [r["points"][0][0] for r in runs] == [10, 20, 100]  # none continues another


def test_logs_without_losses_take_the_output(tmp_path):
    write(tmp_path / "r" / "0.jsonl", log_of(losses_too=False))
    write(tmp_path / "job.out", "".join(PLAIN.format(step=i, loss=curve(i)) for i in range(1, 9)))
    run = one(tmp_path)
    assert run["source"] == "b200opt" and run["loss_source"] == "output" and len(run["points"]) == 8 and len(run["steps"]) == 20


def test_node_marks_times_as_modelled(tmp_path):
    write(tmp_path / "r" / "h-r0-1.jsonl", log_of())
    node = log_of(node=True, run="", steps=0).splitlines(True)
    node.insert(1, '{"t":"node","order":"eager","seed":0,"races":0,"modelled_ns":2500000000}\n')
    write(tmp_path / "h-r0-1.node.jsonl", "".join(node))
    run = one(tmp_path)
    assert run["modelled"] and run["modelled_s"] == 2.5 and run["ranks"] == 1 and run["facts"]["producer"] == "b200opt 1"


def test_ranks_of_another_configuration(tmp_path):
    write(tmp_path / "0.jsonl", log_of(0))
    write(tmp_path / "1.jsonl", log_of(1, config={"B200OPT_PRECISION": "fp8 (environment)"}))
    assert one(tmp_path)["notes"] == ["1 processes ran with another configuration than rank 0's newest"]


def test_log_cut_off(tmp_path):
    text = log_of()
    run = one(write(tmp_path / "a.jsonl", text[:len(text) * 2 // 3]))
    assert run["partial"] and 10 < len(run["points"]) < 20
    assert losses(run) == [(i, curve(i)) for i in range(len(run["points"]))]
    assert wrong(write(tmp_path / "b.jsonl", text[:300])).endswith("its logs have no steps and no losses")


# ---- what cannot be read


def test_one_line_for_what_is_wrong(tmp_path):
    accepted = "logs of b200opt, TensorBoard event files, trainer_state.json, CSV or printed losses"
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "missing": "No such file or directory",
        "pipe": "neither a file nor a folder",
        "folder": f"nothing in it that can be compared; accepted are {accepted}",
        write(tmp_path / "empty", "").name: "empty file",
        write(tmp_path / "binary", bytes(range(256)) * 20).name: f"a binary file of a form that is not known; accepted are {accepted}",
        write(tmp_path / "prose", "no numbers here\n").name: "no line with a loss",
    }
    for name, message in cases.items():
        assert wrong(tmp_path / name) == f"{tmp_path}/{name}: {message}"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    write(tmp_path / "good", "step 1 loss 2.5\nstep 2 loss 2.25\n")
    os.symlink(tmp_path / "gone", tmp_path / "link")
    runs, notes, _ = read(tmp_path)
    assert len(runs) == 1 and notes == [f"{tmp_path}/link: No such file or directory"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs a user who may not read everything")
def test_a_file_without_permission(tmp_path):
    path = write(tmp_path / "secret", "step 1 loss 2.5\n")
    path.chmod(0)
    command = [DUMP, str(path)]
    if os.geteuid() == 0:  # root without the capability to override permissions
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"] + command
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout)["error"] == f"{path}: Permission denied", done.stderr


def test_a_link_does_not_count_twice(tmp_path):
    write(tmp_path / "run-a" / "0.jsonl", log_of(run="a"))
    os.symlink(tmp_path / "run-a", tmp_path / "latest")
    os.symlink(tmp_path / "run-a" / "0.jsonl", tmp_path / "zero.jsonl")
    assert len(read(tmp_path)[0]) == 1 and one(tmp_path)["logs"] == 1


def test_a_hostile_name_stays_one_line(tmp_path):
    write(tmp_path / "0.jsonl", log_of(run="<script>\n\x1b[31m"))
    assert one(tmp_path)["name"] == "<script>\n\x1b[31m"  # data: whoever shows it escapes it
    assert "bad??name" in wrong(write(tmp_path / "bad\n\x1bname", "nothing\n"))
