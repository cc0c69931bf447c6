"""The orderly ends of actors: one without handles is asked to end, so that it can clean up.

Ray: GcsActorManager::DestroyActor with its graceful shutdown timer, in src/ray/gcs/actor/gcs_actor_manager.cc

The question is ``ExitActor``. The actor reports its end, or its process is seen dead. If neither has come after
``actor_graceful_shutdown_timeout_ms``, it is killed (G28).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from minray.common.ids import short_actor
from minray.gcs.gcs_actor_manager import ActorRow, describe
from minray.platform.base import PlatformError
from minray.protocol.actor import OUT_OF_SCOPE, DeathCause, ExitActor
from minray.rpc.connection import Peers

logger = logging.getLogger(__name__)


class ActorExits:
    """Asks actors to end, and waits for each."""

    def __init__(self, peers: Peers, grace_s: float, kill: Callable[[bytes, DeathCause], Awaitable[None]]) -> None:
        """``kill`` ends an actor that has not ended by itself within ``grace_s`` seconds."""
        self._peers = peers
        self._grace_s = grace_s
        self._kill = kill
        self._exiting: dict[bytes, asyncio.Task[None]] = {}
        """Actors that were asked to end, each with the task that waits for its end."""

    def __contains__(self, actor_id: bytes) -> bool:
        return actor_id in self._exiting

    def ask_to_exit(self, row: ActorRow) -> asyncio.Task[None]:
        """Ask an actor to end, once; return the task that ends with it."""
        actor_id = row.info.actor_id
        if actor_id not in self._exiting:
            name = f"exit_actor({short_actor(actor_id)})"
            self._exiting[actor_id] = asyncio.get_running_loop().create_task(self._exit(row), name=name)
        return self._exiting[actor_id]

    def on_ended(self, actor_id: bytes) -> None:
        """Stop waiting for the end of an actor: its incarnation is over."""
        exiting = self._exiting.pop(actor_id, None)
        if exiting is not None and exiting is not asyncio.current_task():
            exiting.cancel()

    def close(self) -> None:
        for exiting in self._exiting.values():
            exiting.cancel()

    async def _exit(self, row: ActorRow) -> None:
        assert row.info.address is not None
        try:
            async with asyncio.timeout(self._grace_s):
                await self._peers.to(row.info.address).call(ExitActor(row.info.actor_id))
                await asyncio.Event().wait()
        except (TimeoutError, PlatformError) as error:
            logger.info("%s does not end by itself: %s", describe(row.info), error or "time-out")
        await self._kill(row.info.actor_id, DeathCause(OUT_OF_SCOPE, "there is no handle of it any more"))
