"""A program that interrupts work which destroys objects all the time; started by test_bug_interrupted_post.py."""

from __future__ import annotations

import asyncio

from minray.platform.threads.main_thread import MainThreadUserCode

TIMES = 8


class Destroyed:
    def __del__(self) -> None:
        for _ in range(100):
            pass


def main() -> None:
    loop = asyncio.new_event_loop()
    code = MainThreadUserCode(loop)
    interrupted = 0

    def work() -> None:
        nonlocal interrupted
        try:
            loop.call_soon_threadsafe(loop.call_later, 0.005, code.interrupt, lambda: True)
            while True:
                Destroyed()
        except KeyboardInterrupt:
            interrupted += 1

    for _ in range(TIMES):
        code.run(work)
    code.stop()
    code.start_relief()
    code.serve()
    print(f"interrupted {interrupted} times")
    loop.close()


if __name__ == "__main__":
    main()
