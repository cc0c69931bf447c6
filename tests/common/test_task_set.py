"""Tasks in the background: a set holds each one until its end, and cancels those that are left."""

from __future__ import annotations

import asyncio
import gc

from minray.common.task_set import TaskSet


async def yield_once() -> None:
    """Let the other tasks of the loop take a turn."""
    turn = asyncio.get_running_loop().create_future()
    turn.get_loop().call_soon(turn.set_result, None)
    await turn


def test_a_task_is_held_until_it_has_ended() -> None:
    async def main() -> list[int]:
        tasks, ended = TaskSet(), list[int]()

        over = asyncio.Event()

        async def work(number: int) -> None:
            await yield_once()
            ended.append(number)
            over.set()

        begun = tasks.begin(work(1), "work(1)")
        assert (begun.get_name(), len(tasks), list(tasks)) == ("work(1)", 1, [begun])
        del begun
        gc.collect()
        await over.wait()
        await yield_once()
        assert not tasks
        return ended

    assert asyncio.run(main()) == [1]


def test_those_that_are_left_are_cancelled_and_others_are_not_waited_for() -> None:
    async def main() -> None:
        tasks = TaskSet()
        waiting = tasks.begin(asyncio.Event().wait(), "waits")
        await tasks.begin(yield_once(), "ends")
        assert tasks.cancel() == [waiting]
        await asyncio.wait([waiting])
        assert waiting.cancelled() and not tasks and tasks.cancel() == []

    asyncio.run(main())
