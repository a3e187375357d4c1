# SPDX-License-Identifier: Apache-2.0
"""Whether two loss curves of one training are equal, from the paired gap of their last quarter and the floor that repeated runs have.

The gap of a step is in percent of the reference, smoothed. Its mean has two errors: that of a mean of dependent values, and a
run-level offset that no single pair of runs shows; the second is `floor`, the root mean square gap of pairs of runs that differ by
nothing but the order of their sums. Both-sided 90 %.
"""
import dataclasses
import math
import statistics

SMOOTH = 9  # steps
BLOCKS = 8
T_7 = 1.8946  # Student's t of 7 degrees of freedom, one-sided 95 %
SAME_DATA = 0.3  # correlation of the curves' short-term noise
SAME_START = 0.15  # percent, steps 1 to 5
WINDOW_LEAST = 100


def smoothed(curve):
    half = SMOOTH // 2
    return [statistics.fmean(curve[max(0, i - half) : i + half + 1]) for i in range(len(curve))]


def gaps(a, b):
    return [100 * (y - x) / level for x, y, level in zip(a, b, smoothed(a), strict=True)]


def window(values):
    """The last quarter, at least 100 steps of it."""
    return values[-max(len(values) // 4, WINDOW_LEAST) :]


def correlation_of_noise(a, b):
    """Of what is left without the smooth curve, early and late: which data a step saw shows there."""

    def noise(curve):
        rest = [x - level for x, level in zip(curve, smoothed(curve))]
        return rest[20:220], window(rest)

    return max(statistics.correlation(x, y) for x, y in zip(noise(a), noise(b)))


def student_95(freedom):
    """One-sided 95 % quantile of Student's t, by the expansion around the normal distribution (error < 0.5 % from 4 degrees on)."""
    z = statistics.NormalDist().inv_cdf(0.95)
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return sum(term / freedom**power for power, term in enumerate(terms))


def block_means(values):
    size = len(values) // BLOCKS
    return [statistics.fmean(values[i * size : (i + 1) * size]) for i in range(BLOCKS)]


def mean_error(values):
    """Half-width for the mean of dependent values: the larger of two estimates."""
    if max(values) == min(values):
        return 0.0
    by_blocks = T_7 * statistics.stdev(block_means(values)) / math.sqrt(BLOCKS)
    n = len(values)
    lag = statistics.correlation(values[1:], values[:-1])
    lag = min(max(lag + (1 + 3 * lag) / n, 0), 0.95)
    effective = max(n * (1 - lag) / (1 + lag), 4)
    return max(by_blocks, student_95(effective - 1) * statistics.stdev(values) / math.sqrt(effective))


def grows(values, margin):
    """A significant slope that would leave the margin within one more window."""
    means = block_means(values)
    middle = statistics.fmean(range(BLOCKS))
    square = sum((i - middle) ** 2 for i in range(BLOCKS))
    slope = sum((i - middle) * mean for i, mean in enumerate(means)) / square
    level = statistics.fmean(means)
    rest = sum((mean - level - slope * (i - middle)) ** 2 for i, mean in enumerate(means)) / (BLOCKS - 2)
    return abs(slope) > 3.1 * math.sqrt(rest / square) and abs(level + slope * BLOCKS) > margin


@dataclasses.dataclass(frozen=True)
class Verdict:
    name: str  # EQUIVALENT, WORSE, BETTER, INCONCLUSIVE, DIVERGED, INVALID
    gap: float  # percent, mean of the window
    half_width: float
    correlation: float = math.nan
    start: float = math.nan  # percent

    def __str__(self):
        return f"{self.name} {self.gap:+.3f} ± {self.half_width:.3f} %"


def floor_of(pairs):
    """Root mean square of the window's gap over pairs of runs of one job."""
    return math.sqrt(statistics.fmean(statistics.fmean(window(gaps(a, b))) ** 2 for a, b in pairs))


def compare(a, b, margin, floor):
    """`b` against the reference `a`; margin and floor in percent."""
    assert len(a) == len(b) >= 2 * WINDOW_LEAST, f"{len(a)} and {len(b)} steps"
    if not all(map(math.isfinite, b)):
        return Verdict("DIVERGED", math.nan, math.nan)
    every = gaps(a, b)
    late = window(every)
    gap, half = statistics.fmean(late), math.hypot(mean_error(late), 1.75 * floor)
    related = correlation_of_noise(a, b)
    start = math.sqrt(statistics.fmean(value**2 for value in (100 * (y - x) / x for x, y in zip(a[:5], b[:5]))))
    size = len(late)
    best = min(statistics.fmean(b[i : i + size]) for i in range(0, len(b) - size + 1, 10))
    if gap > 20 and statistics.fmean(window(b)) > 1.02 * best:
        name = "DIVERGED"
    elif related < SAME_DATA:
        name = "INVALID"
    elif gap - half > margin:
        name = "WORSE"
    elif gap + half < -margin:
        name = "BETTER"
    elif abs(gap) + half <= margin and start <= SAME_START and not grows(late, margin):
        name = "EQUIVALENT"
    else:
        name = "INCONCLUSIVE"
    return Verdict(name, gap, half, related, start)
