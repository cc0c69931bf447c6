"""``minray.why``: explain in a chain of sentences why an object, an actor or a placement group is not ready.

Ray: has no counterpart; its users read logs and ``ray status``.

A chain ends at a resource that no node has or that others hold, at a task or call that runs, or at a death. A ``get`` that
waits for a long time prints this text too. ``why`` changes no state.
"""

from __future__ import annotations

from typing import Any

from minray.api.actor_handle import ActorHandle
from minray.api.calls import current_api
from minray.api.placement_group import PlacementGroup
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.errors.tracebacks import hides_from_pytest
from minray.values.object_ref import ObjectRef

__tracebackhide__ = hides_from_pytest


def why(thing: ObjectRef[Any] | ActorHandle[Any] | type[Any] | PlacementGroup) -> str:
    """Explain why this reference or placement group is not ready, or what this actor waits for or does.

    Raises TypeError for anything else.
    """
    if isinstance(thing, PlacementGroup):
        api = current_api()
        text, _ = api.run_on_loop(lambda: api.placement_groups.explain(thing.id.binary()))
        return str(text)
    if isinstance(thing, ActorHandle):
        return ActorApi(current_api()).why(thing._actor_id, thing._minray_owner)
    if type(thing) is not ObjectRef:
        raise TypeError(f"why takes an ObjectRef, an actor handle or a placement group, not {type(thing).__name__}")
    return current_api().reader.why(thing)
