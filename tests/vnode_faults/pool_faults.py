# SPDX-License-Identifier: Apache-2.0
"""Makes calls of a program that allocates, frees and allocates again fail, bare and with the pool of device memory, and compares what
it does. usage: pool_faults.py

The pool makes other calls of the driver than the program asks for: fewer to allocate and free, and some of its own. So the n-th call of
a function need not be the n-th of the bare program; what counts is the program's call during which the fault strikes. It ends either as
if there were no fault (the pool's own call failed, or what it did instead went well), or as the bare program does when that function fails
in the same call of its own. An error that stays with the context is seen in that call or in the next: as when it strikes there bare."""
import collections
import re
import sys

import faults

PROGRAM = "memory"
NODE = {"B200OPT_VNODE_MEMORY_GB": "1", "B200OPT_VNODE_GPUS": "2"}
NOT_FULL = {**NODE, "MEMORY_NOT_FULL": "1"}
POOL = {"B200OPT_MEMORY": "pool"}
# Name: of the node, of the library.
ARMS = {"pool": (NODE, POOL), "reserve": (NOT_FULL, {**POOL, "B200OPT_MEMORY_RESERVE_MB": "64"})}
STRIKE = re.compile(r"^b200vnode: injected fault: .*\n", re.M)
# An error of the call, memory has run out, an error that stays, another; where the function knows them or not.
EFFECTS = ("1", "2", "719", "999", "sticky=700")
MAKES_NO_CALL = {"cuCtxRecordEvent", "cuEventCreate", "cuEventQuery", "cuEventSynchronize", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}


def split(outcome):
    """(what the program does, its calls that were over when the fault struck)"""
    out, err, end = outcome
    strikes = list(STRIKE.finditer(out))
    assert err == "" and len(strikes) <= 1, outcome
    before = out[:strikes[0].start()].count(" -> ") if strikes else None
    return (STRIKE.sub("", out), err, end), before


def calls_of(counts, function):
    return sum(n for (name, _), n in counts.items() if name == function)


def chosen(calls, everything):
    return range(1, calls + 1) if everything else sorted({1, (calls + 1) // 2, calls})


def ask(arm, everything, bare, counts):
    """Faults for the pool's arm. A part of them: where the pool makes other calls than the program."""
    asked = []
    for function in sorted({name for name, _ in counts}):
        calls = calls_of(counts, function)
        if not faults.can_fail(function) or not (everything or calls != calls_of(bare, function)):
            continue
        for effect in EFFECTS if everything else (faults.status_for(function), "sticky=700"):
            asked += [f"{function}:{n}:{effect}" for n in chosen(calls, everything)]
        if function in MAKES_NO_CALL:
            asked += [f"{function}:*:{effect}" for effect in EFFECTS]
    return asked


def allowed(fault, struck, plain, known):
    function, _, effect = fault.split(":")
    if effect.startswith("sticky"):
        return [o for (_, e), found in known.items() if e == effect for o, at in found if at in (struck, struck + 1)]
    return [plain] + [o for o, at in known[function, effect] if at == struck]


def differences(arm, everything, order="eager"):
    """Runs the campaign of an arm; returns (cases, texts of what differs)."""
    node, library = ARMS[arm]
    node = {**node, "B200OPT_VNODE_ORDER": order}
    bare_counts = faults.call_counts(PROGRAM, "bare", **node)
    counts = faults.call_counts(PROGRAM, arm, **node, **library)
    asked = ask(arm, everything, bare_counts, counts)
    # Bare, every call of the functions in question fails, and every call of every function ends the context.
    pairs = {(f.split(":")[0], f.split(":")[2]) for f in asked if not f.endswith("sticky=700")}
    bare_faults = [f"{f}:{n}:{e}" for f, e in sorted(pairs) for n in range(1, calls_of(bare_counts, f) + 1)]
    bare_faults += [f"{f}:{n}:sticky=700" for f in sorted({n for n, _ in bare_counts}) if faults.can_fail(f)
                    for n in range(1, calls_of(bare_counts, f) + 1)]
    bare = faults.run(PROGRAM, ["-"] + bare_faults, "bare", **node)
    known = collections.defaultdict(list)
    for fault in bare_faults:
        known[fault.split(":")[0], fault.split(":")[2]].append(split(bare[fault]))
    plain, _ = split(bare["-"])
    found = faults.run(PROGRAM, ["-"] + asked, arm, **node, **library)
    wrong = [] if found["-"] == bare["-"] else [f"{arm} without a fault:\n{faults.explain(bare['-'], found['-'])}"]
    for fault in asked:
        outcome, struck = split(found[fault])
        if struck is None:
            wrong.append(f"{arm} {fault}: met no call")
        elif outcome not in allowed(fault, struck, plain, known):
            wrong.append(f"{arm} {fault}, after {struck} calls:\n{faults.explain(plain, outcome)}")
    return len(asked), wrong


def main():
    failed = sum(faults.tell(arm, *differences(arm, everything=True)) for arm in ARMS)
    print(f"{len(ARMS)} arms, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
