# SPDX-License-Identifier: Apache-2.0
"""The ledger as the `block` lines of a log tell it, at any moment of the job."""
import collections
import json

PAGE = 2 << 20  # in which the node hands out device memory


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def pages(size):
    return -(-size // PAGE) * PAGE


class Ledger:
    """Of `block` lines up to a moment: bytes by owner as asked for (`asked`), and in whole pages (`held`, `peak`)."""

    def __init__(self, records):
        self.events = [r for r in records if r["t"] == "block"]
        self.next = 0
        self.live, self.handles, self.mappings = {}, {}, {}
        self.asked, self.held, self.peak = collections.Counter(), collections.Counter(), collections.Counter()

    def _add(self, owner, size, sign=1):
        self.asked[owner] += sign * size
        self.held[owner] += sign * pages(size)
        self.peak[owner] = max(self.peak[owner], self.held[owner])

    def _drop(self, handle):
        entry = self.handles[handle]
        if entry["references"] == entry["mappings"] == 0:
            self._add(entry["owner"], entry["bytes"], -1)
            del self.handles[handle]

    def _take(self, event):
        what = event["what"]
        if what == "alloc":
            assert event["address"] not in self.live, event
            self.live[event["address"]] = (event["owner"], event["bytes"])
            self._add(event["owner"], event["bytes"])
        elif what == "free":
            self._add(*self.live.pop(event["address"]), -1)
        elif what == "create":
            if event["handle"] not in self.handles:
                self.handles[event["handle"]] = {"owner": event["owner"], "bytes": event["bytes"], "references": 0, "mappings": 0}
                self._add(event["owner"], event["bytes"])
            self.handles[event["handle"]]["references"] += 1
        elif what == "release":
            self.handles[event["handle"]]["references"] -= 1
            self._drop(event["handle"])
        elif what == "map":
            self.mappings[event["address"]] = event
            if event["handle"] in self.handles:  # else the host's memory
                self.handles[event["handle"]]["mappings"] += 1
        else:
            at, end = event["address"], event["address"] + event["bytes"]
            while at < end:
                mapping = self.mappings.pop(at)
                at += mapping["bytes"]
                if mapping["handle"] in self.handles:
                    self.handles[mapping["handle"]]["mappings"] -= 1
                    self._drop(mapping["handle"])

    def until(self, t_ns):
        while self.next < len(self.events) and self.events[self.next]["t_ns"] <= t_ns:
            self._take(self.events[self.next])
            self.next += 1
        return self
