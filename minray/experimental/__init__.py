"""Ray's experimental calls, of which minray has the locations of objects, and progress bars of tasks (``tqdm_ray``).

Ray: python/ray/experimental/locations.py

Everything else in Ray's package of this name (tensor transports, dynamic resources) is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from minray.api.calls import connected_api
from minray.common.shown import a
from minray.exceptions import GetTimeoutError
from minray.values.object_ref import ObjectRef

__all__ = ["get_object_locations"]


def get_object_locations(obj_refs: Sequence[ObjectRef[Any]], timeout_ms: int = -1) -> dict[ObjectRef[Any], dict[str, Any]]:
    """Ask the owners of these objects which nodes have copies; do not wait for the tasks that make them.

    Returns ``{"node_ids": [...], "object_size": ..., "did_spill": ...}`` for each reference. ``node_ids``: ids (hex) of the
    nodes with a copy, that of the primary copy first; empty for a small object, whose value its owner holds.
    ``object_size``: bytes, or None while unknown. ``did_spill``: whether the primary copy is in a spill file. References
    whose owner is dead, or has freed the value, are left out.

    ``timeout_ms``: milliseconds to wait for the owners; negative waits without end. Raises GetTimeoutError after that time,
    RuntimeError if this process is not connected, TypeError for anything but references.
    """
    api = connected_api()
    if api is None:
        raise RuntimeError("this process is not connected to a cluster; call minray.init()")
    refs = list(obj_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"get_object_locations takes ObjectRefs, but got {a(ref)}")
    locator, timeout_s = api.port.locator, None if timeout_ms < 0 else timeout_ms / 1000

    async def locate() -> dict[bytes, Any]:
        """Return the locations by object id, without those whose owners are dead or have freed the object."""
        try:
            async with asyncio.timeout(timeout_s):
                return dict(await locator.locate([(ref._id, ref._owner) for ref in refs]))
        except TimeoutError:
            raise GetTimeoutError(timeout_s=timeout_s, reason="not all owners of the objects have answered") from None

    found = api.run_on_loop(locate)
    return {
        ref: {
            "node_ids": [node_id.hex() for node_id in found[ref.binary()].node_ids],
            "object_size": found[ref.binary()].size,
            "did_spill": found[ref.binary()].did_spill,
        }
        for ref in refs
        if ref.binary() in found
    }
