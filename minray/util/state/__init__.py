"""The state of a cluster as a program sees it: which objects there are, and who refers to them.

Ray: python/ray/util/state/

Ray's functions for tasks, actors, nodes and the rest are left out.
"""

from minray.util.state.api import get_objects, list_objects, summarize_objects

__all__ = ["get_objects", "list_objects", "summarize_objects"]
