"""``multiprocessing.Pool`` with the cluster's processes: ``from minray.util.multiprocessing import Pool``.

Ray: python/ray/util/multiprocessing/

Programs that use a pool of the standard library change that one import. ``TimeoutError`` is the standard library's, which
``AsyncResult.get`` raises there as well as here.
"""

from multiprocessing import TimeoutError

from minray.util.multiprocessing.pool import AsyncResult, IMapIterator, Pool

__all__ = ["AsyncResult", "IMapIterator", "Pool", "TimeoutError"]
