"""What pickles functions and classes of programs: the package ``cloudpickle``.

Ray: python/ray/cloudpickle, a copy of that package

Here because programs say ``import ray.cloudpickle as pickle``.
"""

from cloudpickle import (
    CloudPickler,
    Pickler,
    dump,
    dumps,
    load,
    loads,
    register_pickle_by_value,
    unregister_pickle_by_value,
)

__all__ = [
    "CloudPickler",
    "Pickler",
    "dump",
    "dumps",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]
