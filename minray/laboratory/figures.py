"""The arithmetic of reports: percentiles, Jain's index, mean values with confidence intervals.

Ray: has no counterpart

All functions are pure. Results are numbers as they come; ``report`` rounds them.

Rules
  * A percentile is a value that was observed (the nearest rank), never one between two.
  * Confidence intervals are for 95 %. ``t_interval`` assumes means that are about normal. ``bootstrap_interval`` assumes
    nothing, and is too narrow for fewer than about ten values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

import numpy

RESAMPLES = 2000
"""Number of resamples of the bootstrap: its own error is then about a fiftieth of the interval."""
LEVEL = 0.95
T_975 = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
]  # fmt: skip
"""The 97.5 % quantiles of Student's t distribution for 1 to 30 degrees of freedom."""

Interval = tuple[float, float]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share (0 to 1) of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def jain(amounts: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all amounts are equal, 1/n if one has everything. 1 if nobody has anything."""
    squares = math.fsum(amount * amount for amount in amounts)
    return math.fsum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; beyond the table by the first terms of its expansion."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float]) -> Interval:
    """Return the interval of the mean by Student's t; it is infinite for one value."""
    mean = fmean(values)
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Return the interval of the mean by the percentile bootstrap. The seed decides the resamples."""
    raw = numpy.random.PCG64(seed).random_raw(RESAMPLES * len(values))  # numpy keeps this stream the same for good
    chosen = (raw % len(values)).reshape(RESAMPLES, len(values))
    means = numpy.sort(numpy.array(values)[chosen].mean(axis=1))
    cut = round((1 - LEVEL) / 2 * RESAMPLES)
    return float(means[cut]), float(means[-1 - cut])
