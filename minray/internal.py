"""What Ray keeps for those who know what they are doing: freeing values by hand.

Ray: python/ray/_private/internal_api.py (free)

The counting of references frees a value when nobody refers to it any more. Who knows earlier that a large value is not
needed, although references to it are still about, may say so here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minray.object_ref import ObjectRef
from minray.worker import current_api

__all__ = ["free"]


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Free these values wherever they are, although there are references to them.

    A ``get`` of one of them raises ObjectFreedError afterwards, in every process but one that has a small value already. Any
    process may free; the owners do it. Values that the program has got stay valid. With ``local_only`` just the copies on
    this node go, and of these only such as are neither the first one of their object nor being read: a ``get`` brings them
    here again. TypeError for anything but references.
    """
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"free takes ObjectRefs, but got a {type(ref).__name__}")
    if refs:
        current_api().free(refs, local_only)
