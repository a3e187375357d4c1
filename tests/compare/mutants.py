# SPDX-License-Identifier: Apache-2.0
"""Whether the tests of the verdicts see wrong constants and left-out checks: each mutant is built and must fail a test.

    python tests/compare/mutants.py BUILD [WORD]    BUILD: a build folder whose tests pass; WORD: only mutants with it

A mutant is one replacement in one file of tools/compare. The tests are those of tests/compare, the simulations last. Prints for
each mutant the first test that failed, and ends with 1 when one survived.
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ("test_stats", "test_loss", "test_speed", "test_curves", "simulate_loss", "simulate_speed")

# (file, what stands there, what the mutant has)
MUTANTS = (
    ("loss.c", "LOSS_T_SAME_DATA] = {", 0.3, 0.05), ("loss.c", "LOSS_T_SAME_DATA] = {", 0.3, 0.7),
    ("loss.c", "LOSS_T_SAME_START] = {", 0.15, 0.03), ("loss.c", "LOSS_T_SAME_START] = {", 0.15, 0.5),
    ("loss.c", "LOSS_T_FAR] = {", 20, 70), ("loss.c", "LOSS_T_RISING] = {", 2, 4),
    ("loss.c", "LOSS_T_FLOOR] = {", 1.75, 0.9), ("loss.c", "LOSS_T_FLOOR] = {", 1.75, 3),
    ("loss.c", "LOSS_T_GROWTH] = {", 3.1, 30), ("loss.c", "LOSS_T_GROWTH] = {", 3.1, 0.1),
    ("loss.c", "fmax(pair->correlation_early, pair->correlation_late)", "pair->correlation_early"),
    ("loss.c", "fmax(pair->correlation_early, pair->correlation_late)", "pair->correlation_late"),
    ("loss.c", "#define NOISE_LEAST 60", "#define NOISE_LEAST 20"),
    ("loss.c", "#define START_LAST_STEP 10", "#define START_LAST_STEP 1000"),
    ("loss.c", "#define SPIKE_SD 4", "#define SPIKE_SD 400"),
    ("loss.c", "most(series->count / 4, LOSS_WINDOW_LEAST)", "most(series->count / 10, LOSS_WINDOW_LEAST)"),
    ("loss.c", "most(series->count / 4, LOSS_WINDOW_LEAST)", "series->count / 4"),
    ("loss.c", "if (gap - half_width > margin)", "if (gap > margin)"),
    ("loss.c", "if (gap + half_width < -margin)", "if (gap < -margin)"),
    ("loss.c", "return fabs(gap) + half_width < margin", "return fabs(gap) < margin"),
    ("loss.c", "hypot(error.half_width, threshold(LOSS_T_FLOOR) * pair->floor_percent)", "error.half_width"),
    ("loss.c", "hypot(error.half_width, threshold(LOSS_T_FLOOR) * pair->floor_percent)", "error.half_width + threshold(LOSS_T_FLOOR) * pair->floor_percent"),
    ("loss.c", "if (broken_a)\n", "if (broken_a && !broken_b)\n"),
    ("loss.c", "#define SHIFT_ALIKE 0.25", "#define SHIFT_ALIKE 0"), ("loss.c", "#define SHIFT_ALIKE 0.25", "#define SHIFT_ALIKE 1e9"),
    ("loss.c", "shift && settings->may_shift", "shift"), ("loss.c", "2 * plain.common < shifted.common", "false"),
    ("loss.c", "steps <= LOSS_WINDOW_LEAST ? LOSS_WINDOW_LEAST : 4 * steps", "4 * steps"),
    ("loss.c", "return fabs(lag) <= steps ? lag : NAN;", "return lag;"),
    ("loss.c", "if (!check_finite(a, count_a, b, count_b, pair))\n    compare(series, work, pair);", "if (check_common(series, pair) || !check_finite(a, count_a, b, count_b, pair))\n    compare(series, work, pair);"),
    ("loss.c", "(double)most(pair->count_a, pair->count_b)", "(double)least(pair->count_a, pair->count_b)"),
    ("loss.c", "may_be_taken(pair->verdict) && pair->start_differs)", "pair->start_differs)"),
    ("loss.c", "pair->common < LOSS_SURE_STEPS;", "false;"),
    ("loss.c", "fabs(pair->gap_percent + pair->slope_percent) > pair->margin_percent", "true"),
    ("loss.c", "(double)count - 1) * summary->spread_percent", "1e9) * summary->spread_percent"),
    ("loss.c", "sqrt((double)count);\n  free(gaps);", "1;\n  free(gaps);"),
    ("loss.c", "size_t whole = diverged < count ? diverged : invalid;", "size_t whole = invalid < count ? invalid : diverged;"),
    ("loss.c", "double room = distance * distance - floor * floor;", "double room = distance * distance;"),
    ("loss.c", "100 * (series->b[i] - series->a[i]) / series->smooth_a[i]", "100 * (series->b[i] - series->a[i]) / series->smooth_b[i]"),
    ("loss.h", "#define LOSS_CONFIDENCE 0.90", "#define LOSS_CONFIDENCE 0.99"),
    ("loss.h", "#define LOSS_CONFIDENCE 0.90", "#define LOSS_CONFIDENCE 0.60"),
    ("loss.h", "#define LOSS_OVERLAP_LEAST 0.9", "#define LOSS_OVERLAP_LEAST 0.8"),
    ("loss.h", "#define LOSS_SURE_STEPS 600", "#define LOSS_SURE_STEPS 300"),
    ("loss.h", "#define LOSS_ASSUMED_FLOOR 0.05", "#define LOSS_ASSUMED_FLOOR 0.01"),
    ("loss.h", "#define LOSS_RECIPE_PAIRS 3", "#define LOSS_RECIPE_PAIRS 2"),
    ("stats.h", "#define STATS_BLOCKS 8", "#define STATS_BLOCKS 30"),
    ("stats.c", "lag1 += (1 + 3 * lag1) / (double)(count ? count : 1);", ""),
    ("stats.c", "(1 - lag1) / (1 + lag1)", "(1 - lag1)"),
    ("stats.c", "error.half_width = fmax(error.by_blocks, error.by_ar1);", "error.half_width = error.by_blocks;"),
    ("stats.c", "error.half_width = fmax(error.by_blocks, error.by_ar1);", "error.half_width = error.by_ar1;"),
    ("speed.c", "#define WARM_UP_LEAST 10", "#define WARM_UP_LEAST 1"), ("speed.c", "#define WARM_UP_SHARE 10", "#define WARM_UP_SHARE 100"),
    ("speed.c", "#define SETTLED 0.02", "#define SETTLED 1"), ("speed.c", "#define EXCEPTIONAL_SD 3", "#define EXCEPTIONAL_SD 300"),
    ("speed.c", "#define EXCEPTIONAL_LEAST 0.02", "#define EXCEPTIONAL_LEAST 0"),
    ("speed.c", "1.2533141373155003", "0.7"), ("speed.c", "seconds / 3600 * price_per_hour", "seconds / 60 * price_per_hour"),
    ("speed.c", "run->log_error = blocks_wider ? by_blocks : by_ar1;", "run->log_error = stats_sd(values, count) / sqrt((double)count);"),
    ("speed.c", "ratio->low > 1", "ratio->ratio > 1"), ("speed.c", "(wide + power) * gain.error", "wide * gain.error"),
    ("speed.h", "#define SPEED_CONFIDENCE 0.95", "#define SPEED_CONFIDENCE 0.8"), ("speed.h", "#define SPEED_RUNS 3", "#define SPEED_RUNS 2"),
)


def replacement(row):
    """Rows of the table of bounds name the row, the value and the wrong value; else a text and the wrong text."""
    file, old, *values = row
    text = (ROOT / "tools/compare" / file).read_text()
    if len(values) == 1:
        if text.count(old) != 1:
            sys.exit(f"mutants: {file}: {old!r} stands there {text.count(old)} times, not once")
        return text.replace(old, values[0]), f"{old!r} -> {values[0]!r}"
    head, tail = text.split(old)
    fields, rest = tail.split("}", 1)
    before, number = fields.rsplit(",", 1)
    if float(number) != values[0]:
        sys.exit(f"mutants: {file}: {old!r} is {number}, not {values[0]}")
    return head + old + before + f", {values[1]}" + "}" + rest, f"{old.split(']')[0]} {values[0]} -> {values[1]}"


def commands(build):
    """How each file of the library and the tests is compiled, without its input and output."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.parent in (ROOT / "tools/compare", ROOT / "tests/compare"):
            words = shlex.split(entry["command"])
            for option in ("-o", "-MT", "-MF"):
                if option in words:
                    at = words.index(option)
                    del words[at : at + 2]
            found[path.name] = [w for w in words if w not in ("-c", "-MD", entry["file"])]
    return found


def build_tests(build, folder, compile_with):
    """Builds the tests on tools/compare as it stands below `folder`, which comes first among the folders for headers."""
    objects = {}
    names = ("stats.c", "loss.c", "speed.c", "curves.c", *(f"{test}.c" for test in TESTS))
    for name in names:
        copy = folder / "tools/compare" / name
        source = copy if copy.exists() else ROOT / "tests/compare" / name
        objects[name] = folder / f"{name}.o"
        command = [compile_with[name][0], f"-I{folder}", *compile_with[name][1:], f"-I{ROOT}/tests/compare", "-Wno-error", "-w", "-c", source, "-o", objects[name]]
        subprocess.run(command, check=True)
    archives = [build / "tools/libb200_reader.a", *sorted(build.glob("policy/*.a"))]
    libraries = subprocess.run(["pkg-config", "--libs", "check", "jansson"], check=True, capture_output=True, text=True).stdout.split()
    for test in TESTS:
        inputs = [objects[name] for name in ("stats.c", "loss.c", "speed.c", "curves.c", f"{test}.c")]
        subprocess.run([compile_with["stats.c"][0], *inputs, *archives, *libraries, "-lm", "-o", folder / test], check=True)


def first_failure(folder):
    for test in TESTS:
        if subprocess.run([folder / test], capture_output=True, check=False).returncode:
            return test
    return None


def tried(build, compile_with, file=None, text=None):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tools/compare").mkdir(parents=True)
        for path in (ROOT / "tools/compare").glob("*.[ch]"):
            (folder / "tools/compare" / path.name).write_text(text if path.name == file else path.read_text())
        build_tests(build, folder, compile_with)
        return first_failure(folder)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build, word = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else ""
    compile_with = commands(build)
    if failed := tried(build, compile_with):
        sys.exit(f"mutants: {failed} fails without any")
    survivors = count = 0
    for row in MUTANTS:
        text, what = replacement(row)
        if word not in f"{row[0]} {what}":
            continue
        count += 1
        failed = tried(build, compile_with, row[0], text)
        survivors += failed is None
        print(f"{failed or 'SURVIVED':16} {row[0]:8} {what}", flush=True)
    print(f"{count - survivors} passed, {survivors} failed")
    sys.exit(1 if survivors or not count else 0)


if __name__ == "__main__":
    main()
