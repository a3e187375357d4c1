# SPDX-License-Identifier: Apache-2.0
"""The demo job with PyTorch on the virtual node: metric lines, marks and confidence against PyTorch's own optimizer and the lines
that the job prints."""
import json
import os
import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(os.environ["B200_BUILD"])
TRAIN = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_job" / "train.py"
STEPS = 12


def test_the_demo_job(tmp_path):
    job = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAIN, "--steps", str(STEPS),
           "--width", "64", "--batch", "2", "--seq", "32", "--text-mb", "0.3"]
    variables = ["B200OPT_OPTIMIZER_HOOK=1", "B200OPT_METRICS=stdout", "B200OPT_METRICS_EVERY=4", f"B200OPT_PROMETHEUS_FILE={tmp_path}/job.prom"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("B200OPT")}
    done = subprocess.run([BUILD / "b200opt", "dryrun", "--gpus", "2", "--log", tmp_path / "log", *variables, "--", *job], cwd=tmp_path,
                          env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    printed = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)", done.stdout, re.M)}
    assert sorted(printed) == list(range(STEPS))

    lines = [dict(re.findall(r"(\w+)=(.*?);", line)) for line in done.stdout.splitlines() if "b200opt: " in line]
    assert [int(line["step"]) for line in lines] == [4, 8], done.stdout
    for line in lines:
        assert float(line["loss"]) in (printed[int(line["step"])], printed[int(line["step"]) + 1])
        assert float(line["hbm_used_gb"]) > 0 and float(line["step_ms"]) > 0

    logs = [p for p in tmp_path.glob("log/**/*.jsonl") if not p.name.endswith(".node.jsonl")]
    assert len(logs) == 2
    for log in logs:
        records = [json.loads(line) for line in log.read_text().splitlines()]
        marks = [r for r in records if r["t"] == "mark"]
        assert {r["step"]: r["count"] for r in marks if r["what"] == "optimizer"} == dict.fromkeys(range(STEPS), 1)
        assert [r["step"] for r in marks if r["what"] == "first"] == [0]
        (confidence,) = [r for r in records if r["t"] == "confidence"]
        wanted = {"period": STEPS, "optimizer": STEPS, "gap": STEPS}
        if records[0]["rank"] == 0:
            wanted["printed"] = STEPS - 1
        assert confidence["sources"] == wanted and confidence["agree"] == confidence["asked"] == len(wanted)
    assert sorted(p.name for p in tmp_path.glob("job*")) == ["job-r0.prom", "job-r1.prom"]
