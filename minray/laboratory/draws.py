"""Numbers drawn by a seed, the same for each version of Python and of numpy.

Ray: has no counterpart

    draws = Draws(7, "arrivals")
    draws.exponential(mean=2.0)

A stream is named by the seed and words, so that one more draw in one place does not change the numbers of another. The
generator of workloads uses it. Python's ``random`` is not used because simulated code has it replaced.
"""

from __future__ import annotations

import hashlib
import math


class Draws:
    """One stream of numbers."""

    def __init__(self, seed: int, *words: str) -> None:
        self._key = "/".join([str(seed), *words]).encode()
        self._count = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Draw from ``low`` to below ``high``."""
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(8, "big"), digest_size=8, key=self._key[:64]).digest()
        return low + (high - low) * ((int.from_bytes(digest, "big") >> 11) / (1 << 53))

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self.uniform())

    def lognormal(self, mean: float, sigma: float) -> float:
        """Draw from the log-normal distribution with this mean; ``sigma`` is the deviation of the logarithm."""
        angle, radius = 2 * math.pi * self.uniform(), math.sqrt(-2 * math.log(1.0 - self.uniform()))
        return mean * math.exp(sigma * radius * math.cos(angle) - sigma * sigma / 2)

    def pareto(self, mean: float, alpha: float) -> float:
        """Draw from the Pareto distribution with this mean; ``alpha``, above 1, is its tail index."""
        return mean * (alpha - 1) / alpha * math.pow(1.0 - self.uniform(), -1 / alpha)
