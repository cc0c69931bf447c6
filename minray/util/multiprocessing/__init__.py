"""``multiprocessing.Pool`` with the cluster's processes: ``from minray.util.multiprocessing import Pool``.

Ray: python/ray/util/multiprocessing/

Programs that use a pool of the standard library need to change only that import. ``TimeoutError`` is the one of the
standard library's ``multiprocessing``, which ``AsyncResult.get`` raises here too.
"""

from multiprocessing import TimeoutError

from minray.util.multiprocessing.pool import AsyncResult, IMapIterator, Pool

__all__ = ["AsyncResult", "IMapIterator", "Pool", "TimeoutError"]
