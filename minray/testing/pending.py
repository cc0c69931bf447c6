"""Describes all that a cluster waits for and does at this moment, for a test that was too slow.

Ray: ``ray stack`` and ``ray list tasks``; tests/conftest.py there prints the logs of a failed test

``pending_text`` says ``why()`` of everything that this process waits for: its unfinished tasks and calls, the actors that
are not dead, the placement groups that are not ready. Then it shows the stacks of all processes of the cluster, and those of
this process's own threads.

The cluster may be what is broken. So a thread asks it, and gets some seconds. What has come by then is shown.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from functools import partial

from minray.api.calls import connected_api, state_reader
from minray.common.ids import return_id
from minray.common.thread_frames import frames_of_other_threads
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import RaySystemError
from minray.gcs.placement_group_manager import CREATED
from minray.observability.stack_text import stack_text
from minray.testing.cluster_leaks import ClusterState
from minray.testing.process_leaks import WORKERS

MOST = 20
"""Explanations of each kind: a reader needs the first ones."""
PATIENCE_S = 10.0
"""Seconds that the cluster has to explain itself."""
ANSWER_S = 2.0
"""Seconds that each process has to show its stacks."""


def pending_text(patience_s: float = PATIENCE_S) -> str:
    """Return explanations of everything unfinished, and all stacks. Never raises, and returns within ``patience_s``."""
    parts: list[str] = []
    api = connected_api()
    if api is None:
        parts.append("this process is not connected to a cluster")
    else:
        asking = threading.Thread(target=_ask, args=(api, parts), name="minray-pending", daemon=True)
        asking.start()
        asking.join(patience_s)
        if asking.is_alive():
            parts.append(f"the cluster has not answered within {patience_s:g} s")
    return "\n".join([*parts, "", "Threads of the test's process:", *_own_stacks()])


def _ask(api: UserApi, parts: list[str]) -> None:
    """Add what the cluster says to ``parts``, bit by bit: what came before it got stuck is shown."""
    try:
        for line in _explanations(api):
            parts.append(line)
        stacks = api.run_on_loop(lambda: state_reader(api).stacks(ANSWER_S))
        parts += ["", "Stacks of the cluster:", stack_text(stacks)]
    except (RaySystemError, TimeoutError) as error:
        parts.append(f"the cluster does not answer: {error}")


def _explanations(api: UserApi) -> Iterator[str]:
    state = ClusterState.of(api)
    explainer, own = api.port.explainer, api.port.process.address
    for task_id in list(state.tasks)[:MOST]:
        lines: list[str] = api.run_on_loop(partial(explainer.explain_in_time, return_id(task_id, 1), own))
        yield " <- ".join(lines)
    for info in list(state.actors.values())[:MOST]:
        yield ActorApi(api).why(info.actor_id, info.owner)
    for group in [group for group in state.groups.values() if group.state != CREATED][:MOST]:
        text, _ = api.run_on_loop(partial(api.placement_groups.explain, group.group_id))
        yield str(text)
    left_out = sum(max(0, len(kind) - MOST) for kind in (state.tasks, state.actors, state.groups))
    if left_out:
        yield f"{left_out} further explanations are left out"
    if not (state.tasks or state.actors or state.groups):
        yield "no task, actor or placement group is unfinished"


def _own_stacks() -> list[str]:
    """Return the stacks of this process's threads, without the threads of minray, whose stacks the cluster shows."""
    frames = frames_of_other_threads()
    lines: list[str] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        is_own = thread is threading.current_thread()
        if (is_own or frame is not None) and not thread.name.startswith(WORKERS):
            lines.append(f"  Thread {thread.name}")
            stack = [place for place in traceback.extract_stack(frame) if not _is_of_pytest(place.filename)]
            lines += [f"    {line}" for text in traceback.format_list(stack) for line in text.rstrip().splitlines()]
    return lines


def _is_of_pytest(path: str) -> bool:
    return any(f"/{package}/" in path.replace("\\", "/") for package in ("_pytest", "pluggy", "pytest"))
