"""What is built on the public API, and small helpers for users.

Ray: python/ray/util/

So far: the scheduling strategies. Pools, queues and executors come with actors.
"""

from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["NodeAffinitySchedulingStrategy"]
