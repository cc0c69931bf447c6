"""Tasks that wait for tasks of the same function: ``Tower``, which needs more workers than its nodes have CPUs.

A task that waits lends its CPU, so that its children can run. Each waiting task keeps its worker, and a raylet lets a
function have few more workers than there are CPUs, but for the deepest of its requests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses


class Tower(Story, frozen=True):
    """Some tasks, each of which waits for two children, and these for theirs."""

    roots: int = 3
    height: int = 2
    """Number of generations below the first."""
    seconds: float = 0.02
    """Seconds that each task takes besides."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        build = storey.options(max_retries=self.max_retries)
        refs = [build.remote(self.height, self.seconds, self.max_retries) for _ in range(self.roots)]
        return [look_at(ref) for ref in refs]

    def wanted(self) -> list[Any]:
        return [2 ** (self.height + 1) - 1] * self.roots

    def errors(self, losses: Losses) -> set[str]:
        """A task may need its retries for each of the tasks above it, too."""
        lost = losses.of_any_task(self.max_retries, self.height + 1)
        for _ in range(self.height):
            lost |= {f"RayTaskError({error})" for error in lost if not error.startswith("RayTaskError(")}
        return lost

    def busy_s(self) -> float:
        return self.roots * 2 ** (self.height + 1) * self.seconds * (self.max_retries + 1)


@minray.remote(num_cpus=1)
def storey(height: int, seconds: float, max_retries: int) -> int:
    """Count the tasks of this part of a tower."""
    time.sleep(seconds)
    if not height:
        return 1
    build = storey.options(max_retries=max_retries)
    return 1 + sum(minray.get([build.remote(height - 1, seconds, max_retries) for _ in range(2)]))
