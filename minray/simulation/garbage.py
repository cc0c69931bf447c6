"""Garbage collection during simulations: when the interpreter collects depends on what else runs in it.

Objects that are freed tell their owners, so a collection at another moment would be another run. A simulated cluster
therefore runs without the collector, and ``SimCluster.settle`` collects once. That examines every object of the interpreter,
unless those that were there before are frozen.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def without_garbage_collection() -> Generator[None, None, None]:
    """Turn off the garbage collector, so that objects are freed with their last reference or by ``settle``.

    Otherwise the time would differ between runs.
    """
    with frozen_heap():
        was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


_freezers = 0
"""Number of open ``frozen_heap`` contexts."""


@contextlib.contextmanager
def frozen_heap() -> Generator[None, None, None]:
    """Exclude the objects that exist now from garbage collections.

    A caller that runs many clusters should do this around all of them. Then these objects are examined once, not for each
    cluster. Objects left over from one cluster are not frozen for the next: they would never be freed.
    """
    global _freezers
    if not _freezers:
        gc.collect()
        gc.freeze()
    _freezers += 1
    try:
        yield
    finally:
        _freezers -= 1
        if not _freezers:
            gc.unfreeze()
