"""The error of a ``get`` whose time is up: which references are not ready, and what they wait for.

Ray: GetTimeoutError in python/ray/exceptions.py, which says neither

The cause is that of ``why``. It may have to be asked of other processes, and a caller with a timeout does not want to wait
much longer. So the explanation gets a fraction of the timeout; a ``get`` that does not wait at all gets none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minray.core_worker.user_threads.port import ExplainInTime, UserPort
from minray.exceptions import GetTimeoutError, RayError
from minray.protocol.base import Address
from minray.values.object_ref import ObjectRef

MOST_NAMED = 3
"""Most references that are named; the others are counted."""
PATIENCE = 0.1
"""Part of the timeout that the explanation may take."""
MOST_PATIENCE_S = 0.5
"""Most seconds that the explanation may take."""


class Asker(Protocol):
    """The ``UserApi`` of the process, as far as it is needed here."""

    port: UserPort

    def run_on_loop(self, make_coroutine: Callable[[], Any]) -> Any: ...


def timed_out(asker: Asker, missing: Sequence[ObjectRef[Any]], timeout_s: float | None) -> GetTimeoutError:
    """Make the error for references that are not ready; ask why the first of them is not."""
    named = ", ".join(ref.hex() for ref in missing[:MOST_NAMED])
    others = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    patience_s = min(MOST_PATIENCE_S, PATIENCE * (timeout_s or 0))
    cause = ""
    if patience_s > 0:
        try:
            first, explainer = missing[0], asker.port.explainer
            lines = asker.run_on_loop(lambda: _explain(explainer, first._id, first._owner, patience_s))
            cause = f"; {' <- '.join(lines)}" if lines else ""
        except RayError:
            pass  # the cluster is gone, and the error is about the timeout all the same
    return GetTimeoutError(timeout_s=timeout_s, reason=f"not ready: {named}{others}{cause}")


async def _explain(explainer: ExplainInTime, object_id: bytes, owner: Address, patience_s: float) -> list[str]:
    try:
        async with asyncio.timeout(patience_s):
            return await explainer.explain_in_time(object_id, owner)
    except TimeoutError:
        return []
