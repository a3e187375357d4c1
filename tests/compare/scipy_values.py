# SPDX-License-Identifier: Apache-2.0
"""Writes scipy_values.h: what SciPy and NumPy say of the series that test_stats.c asks stats.c about.

    python tests/compare/scipy_values.py >tests/compare/scipy_values.h        needs scipy (1.17 wrote what is committed)
"""
import numpy
import scipy
from scipy import stats

P = (0.01, 0.1, 0.5, 0.75, 0.8, 0.95, 0.975, 0.995, 0.9999)
FREEDOM = (1, 1.5, 2, 3, 4.25, 7, 10, 29.5, 100, 1234.5, 1e6)
T = (-40, -3.1, -1, -0.001, 0, 0.3, 1.8946, 2.5, 12)
SHARES = (0, 0.05, 0.25, 0.5, 0.95, 1)


def series(kind, count):
    """The same arithmetic as test_stats.c does: exact in both."""
    state, values = 12345 + count, []
    for i in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        noise = state / 2**31 - 0.5
        if kind == "independent":
            values.append(noise)
        elif kind == "dependent":
            values.append(0.75 * (values[-1] if values else 0) + noise)
        else:
            values.append(0.0078125 * i + noise)
    return numpy.array(values)


def row(*numbers):
    return "    {" + ", ".join(f"{float(number)!r}" for number in numbers) + "},"


def table(name, columns, rows):
    print(f"\nstatic const double {name}[][{columns}] = {{")
    print("\n".join(rows))
    print("};")


def means_of(values, blocks):
    size = len(values) // blocks
    return values[len(values) - size * blocks :].reshape(blocks, size).mean(axis=1)


def numbers_of(kind, count):
    values = series(kind, count)
    median = numpy.median(values)
    line = stats.linregress(numpy.arange(count), values)
    lag = stats.pearsonr(values[1:], values[:-1])[0]
    rho = min(max(lag + (1 + 3 * lag) / count, 0), 0.95)
    effective = max(count * (1 - rho) / (1 + rho), 4)
    blocks = means_of(values, 8)
    by_blocks = blocks.mean() - stats.t.interval(0.9, 7, loc=blocks.mean(), scale=stats.sem(blocks))[0]
    by_ar1 = stats.t.ppf(0.95, effective - 1) * values.std(ddof=1) / numpy.sqrt(effective)
    return row(
        count, values.mean(), values.std(ddof=1), median, stats.median_abs_deviation(values), stats.trim_mean(values, 0.1), lag, rho,
        line.slope, line.stderr, by_blocks, by_ar1,
    )


def welch(kind_a, count_a, kind_b, count_b):
    a, b = series(kind_a, count_a), series(kind_b, count_b) * 3 + 1
    test = stats.ttest_ind(b, a, equal_var=False)
    low, high = test.confidence_interval(0.95)
    return row(count_a, count_b, b.mean() - a.mean(), (b.mean() - a.mean()) / test.statistic, test.df, low, high)


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Written by scipy_values.py with SciPy {scipy.__version__}. */")
    print("#ifndef B200_COMPARE_SCIPY_VALUES_H\n#define B200_COMPARE_SCIPY_VALUES_H")
    print("\n/* clang-format off */")
    print("\n/* p, degrees of freedom, quantile */", end="")
    table("scipy_t_quantiles", 3, [row(p, f, stats.t.ppf(p, f)) for p in P for f in FREEDOM])
    print("\n/* t, degrees of freedom, probability */", end="")
    table("scipy_t_probabilities", 3, [row(t, f, stats.t.cdf(t, f)) for t in T for f in FREEDOM])
    print("\n/* count, share, quantile of the independent series of that length */", end="")
    table("scipy_quantiles", 3, [row(n, p, numpy.quantile(series("independent", n), p)) for n in (1, 2, 17, 100) for p in SHARES])
    print("\n/* count, mean, sd, median, MAD, trimmed mean, lag 1, corrected, slope, its error, half-width by blocks, by AR(1) */", end="")
    for kind in ("independent", "dependent", "rising"):
        table(f"scipy_{kind}", 12, [numbers_of(kind, n) for n in (16, 100, 203, 500)])
    print("\n/* counts of the independent series and of thrice the dependent one plus 1; difference, error, freedom, 95 % interval */", end="")
    table("scipy_welch", 7, [welch("independent", n, "dependent", m) for n, m in ((3, 3), (3, 10), (20, 4), (100, 50))])
    print("\n/* clang-format on */\n\n#endif")


if __name__ == "__main__":
    main()
