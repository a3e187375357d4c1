# SPDX-License-Identifier: Apache-2.0
"""usage: ask_hta.py [--once] FOLDER...    what Holistic Trace Analysis says of the traces in each folder, as JSON:
{FOLDER: {"all": {RANK: {COLUMN: value}}, "without_last_step": the same}}; with --once only the first. By HTA's Python, .venv-hta."""
import json
import os
import pathlib
import sys

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it rounds starts up and ends down to microseconds else
sys.path.append(str(pathlib.Path(sys.prefix) / "oracles"))  # requirements_apart.txt


from hta.trace_analysis import TraceAnalysis  # noqa: E402


def ask(folder, last_step):
    analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=last_step)
    rows = {}
    for table in (analysis.get_comm_comp_overlap(visualize=False), analysis.get_temporal_breakdown(visualize=False)):
        for row in table.to_dict("records"):
            rows.setdefault(int(row.pop("rank")), {}).update(row)
    return rows


once = "--once" in sys.argv
print(json.dumps({folder: {"all": ask(folder, True)} | ({} if once else {"without_last_step": ask(folder, False)})
                  for folder in sys.argv[1:] if folder != "--once"}, default=float))
