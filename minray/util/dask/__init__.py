"""Dask collections on a cluster: a scheduler for any Dask graph, futures for persisted collections, callbacks.

Ray: python/ray/util/dask/__init__.py

    import dask.array as da
    from minray.util.dask import enable_dask_on_minray

    enable_dask_on_minray()
    da.random.random((20_000, 20_000), chunks=(2_000, 2_000)).std().compute()

This folder uses the public API alone and imports minray in one way only. So a copy of it runs on Ray when each
``import minray as ray`` is replaced by ``import ray``; ``make dask-on-ray`` does that. Ray's names exist beside ours.

Dask calls ``scheduler``. ``graph`` makes plain nodes from Dask's graph, ``submission`` submits them as tasks, ``shipping``
is the remote function of these tasks. ``futures`` are the values of persisted collections. ``callbacks`` has Dask's
callbacks and Ray's.
"""

import importlib.util

if importlib.util.find_spec("dask") is None:
    raise ModuleNotFoundError(f"{__name__} needs Dask: pip install 'minray[dask]'", name="dask")

from .callbacks import ProgressBarCallback, RayDaskCallback, local_ray_callbacks, unpack_ray_callbacks
from .futures import Future, futures_of, wait
from .scheduler import (
    DaskScheduler,
    disable_dask_on_minray,
    enable_dask_on_minray,
    minray_dask_get,
    minray_dask_get_sync,
    minray_dask_persist,
)

enable_dask_on_ray = enable_dask_on_minray
disable_dask_on_ray = disable_dask_on_minray
ray_dask_get = minray_dask_get
ray_dask_get_sync = minray_dask_get_sync
ray_dask_persist = minray_dask_persist

__all__ = [
    "DaskScheduler",
    "Future",
    "ProgressBarCallback",
    "RayDaskCallback",
    "disable_dask_on_minray",
    "disable_dask_on_ray",
    "enable_dask_on_minray",
    "enable_dask_on_ray",
    "futures_of",
    "local_ray_callbacks",
    "minray_dask_get",
    "minray_dask_get_sync",
    "minray_dask_persist",
    "ray_dask_get",
    "ray_dask_get_sync",
    "ray_dask_persist",
    "unpack_ray_callbacks",
    "wait",
]
