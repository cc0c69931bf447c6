"""A driver process of the real tier: reads orders from standard input, one JSON object a line, and answers in kind.

The program runs in a thread of its own, so that the process can answer ``why`` while the program waits. To plant a mistake
into a driver, a test imports this module, changes minray, and calls ``main``.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import sys
import threading
from typing import Any

import msgspec

import minray
from minray.api import calls as worker
from tests.helpers import core_worker_of
from tests.simulation.judge import core_leftovers
from tests.spec.detached import say_farewell
from tests.spec.programs import Body, Leave, perform
from tests.spec.real_worker import look_into_worker, needs_here
from tests.spec.stage import Stage, has_lost_its_node


class DriverProcess:
    """Carries out one order after the other; see the methods named ``do_...``."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._stage = Stage({})
        """Stage of the present program."""

    def serve(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            method = getattr(self, f"do_{order['do']}")
            answer = method(**order["with"])
            if order["do"] != "perform":  # The thread of the program answers that at its end.
                self._say(order["do"], answer)

    def _say(self, about: str, answer: Any) -> None:
        with self._writing:
            print(json.dumps([about, answer]), flush=True)

    def do_connect(self, address: str) -> None:
        minray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)

    def do_perform(self, body: dict[str, Any]) -> None:
        """Begin to play a body. Its ``history`` or ``failure`` is said at its end, after a leaving driver has left."""
        threading.Thread(target=self._perform, args=(msgspec.convert(body, Body),), name="program", daemon=True).start()

    def _perform(self, body: Body) -> None:
        self._stage = Stage({})
        try:
            history = perform(body, self._stage)
            if isinstance(body.end, Leave):
                minray.shutdown()
        except BaseException as error:
            is_lost = has_lost_its_node(error) or self.do_is_homeless()
            self._say("over", {"failure": f"{type(error).__name__}: {error}", "is_homeless": is_lost})
        else:
            self._say("over", {"history": history})

    def do_say_farewells(self, names: list[str]) -> list[dict[str, Any]]:
        """Say farewell to these detached actors."""
        return [msgspec.to_builtins(say_farewell(name)) for name in names]

    def do_is_homeless(self) -> bool:
        """Whether this driver has noticed that its raylet is dead."""
        api: Any = worker.connected_api()
        return api is not None and api.port.process.raylet.death is not None

    def do_drop(self) -> None:
        """Drop all references."""
        self._stage = Stage({})

    def do_leftovers(self) -> list[str]:
        """Leftovers in this process that no detached actor needs."""
        api: Any = worker.current_api()

        async def look() -> list[str]:
            core = core_worker_of(api)
            return core_leftovers(core, await needs_here(core))

        found: list[str] = api.run_on_loop(look)
        return found

    def do_look_into_workers(self, count: int) -> list[str]:
        """Look for leftovers in ``count`` workers of this driver's job, some of which may be new."""
        looks = minray.get([look_into_worker.remote() for _ in range(count)])
        return sorted({f"worker {pid}: {line}" for pid, lines in looks for line in lines})

    def do_why(self) -> list[str]:
        """Ask ``why`` about every reference that the program still holds."""
        return [f"{name}: {minray.why(ref)}" for name, ref in list(self._stage.refs.items())]

    def do_disconnect(self) -> None:
        minray.shutdown()


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    DriverProcess().serve()


if __name__ == "__main__":
    main()
