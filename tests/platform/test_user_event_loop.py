"""An async actor's event loop: it runs in pieces, loses nothing, waits for nothing, and looks like any other from inside.

Each test is a small program with a main thread of its own; ``begin(main)`` runs a coroutine on the user's loop, ``user``.
"""

from __future__ import annotations

import textwrap

from tests.platform.main_thread_program import run_program

BEGIN = """
    user = None
    pieces = [0]

    def begin(main):
        def on_open(opened):
            global user
            user = opened
            run_piece = user._run_piece

            def counted():
                pieces[0] += 1
                run_piece()

            user._run_piece = counted
            opened.create_task(main()).add_done_callback(lambda task: (code.follow(code.stop), task.result()))

        code.run_event_loop(on_open)
"""


UNHURRIED = """
    from minray.platform.threads import user_event_loop
    user_event_loop.TURN_S = 60
"""
"""A piece ends when there is nothing left, and not sooner because the machine is slow: pieces are counted."""


def run_coroutine(source: str) -> list[str]:
    """Run a program that defines the coroutine ``main``, and return the lines that it prints."""
    return run_program(textwrap.dedent(BEGIN) + textwrap.dedent(source) + "\nbegin(main)")


def run_unhurried(source: str) -> list[str]:
    return run_coroutine(textwrap.dedent(UNHURRIED) + textwrap.dedent(source))


def test_it_runs_in_the_main_thread_and_all_the_time_as_far_as_one_sees() -> None:
    assert run_coroutine("""
        async def main():
            print(threading.current_thread() is threading.main_thread(), asyncio.get_running_loop() is user)
            print(user.is_running(), await user.run_in_executor(None, user.is_running), asyncio.get_event_loop() is user)
            for end in (user.stop, user.close):
                try:
                    end()
                except RuntimeError as error:
                    print(str(error).partition(";")[0])
    """) == ["True True", "True True True", *["an actor's event loop runs as long as the actor does"] * 2, "over"]


def test_nothing_that_threads_add_is_lost() -> None:
    """From threads, from the worker's loop, and from the loop's own callbacks."""
    assert run_coroutine("""
        COUNT = 3000

        async def main():
            heard, all_heard = [], asyncio.Event()

            def hear(who, number):
                heard.append((who, number))
                if len(heard) == 4 * COUNT:
                    all_heard.set()

            def add(who):
                for number in range(COUNT):
                    user.call_soon_threadsafe(hear, who, number)

            def add_one(number):
                user.call_soon_threadsafe(hear, "worker", number)
                if number + 1 < COUNT:
                    loop.call_soon(add_one, number + 1)

            def add_own(number):
                hear("own", number)
                if number + 1 < COUNT:
                    user.call_soon(add_own, number + 1)

            for who in "ab":
                threading.Thread(target=add, args=[who]).start()
            from_loop(add_one, 0)
            add_own(0)
            await all_heard.wait()
            print([[n for w, n in heard if w == who] == list(range(COUNT)) for who in ("a", "b", "worker", "own")])
    """) == ["[True, True, True, True]", "over"]


def test_timers_are_kept() -> None:
    """Also one that is earlier than those before it, and one that is later than one that was cancelled."""
    assert run_coroutine("""
        async def main():
            far = user.call_later(60, print, "too late")
            await asyncio.sleep(0.01)
            user.call_later(0.001, print, "never").cancel()
            await asyncio.sleep(0.01)
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.005)
            except asyncio.TimeoutError:
                print("in time", far.cancelled())
            timers = [user.call_later(0.001 * number, asyncio.Event().set) for number in range(20)]
            await asyncio.sleep(0.002)
            for timer in timers:
                timer.cancel()
            await asyncio.sleep(0.001)
            print("all of them")
    """) == ["in time False", "all of them", "over"]


def test_files_are_heard_as_soon_as_they_are_ready() -> None:
    """A server, its clients, and a child process, on this loop alone."""
    assert run_coroutine("""
        async def serve(reader, writer):
            while line := await reader.readline():
                writer.write(line.upper() * 1000)
            writer.close()
            await writer.wait_closed()

        async def ask(port, name):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(20):
                writer.write(b"%s%d\\n" % (name, number))
                for _ in range(1000):
                    assert await reader.readline() == b"%s%d\\n" % (name.upper(), number)
            writer.close()
            await writer.wait_closed()

        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            await asyncio.gather(*(ask(port, name) for name in (b"a", b"b", b"c")))
            server.close()
            await server.wait_closed()
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
            print((await child.communicate(b"meow"))[0])
    """) == ["b'meow'", "over"]


def test_files_are_polled_only_when_one_is_ready() -> None:
    assert run_coroutine("""
        import selectors

        async def main():
            polls, poll = [], selectors.DefaultSelector.select

            def counted(files, timeout):
                polls.extend([1] if files is user._files else [])
                return poll(files, timeout)

            selectors.DefaultSelector.select = counted
            ours, theirs = os.pipe()
            heard = asyncio.Event()
            user.add_reader(ours, lambda: (os.read(ours, 1), heard.set()))
            await asyncio.sleep(0.001)
            print(len(polls))
            os.write(theirs, b"x")
            await heard.wait()
            await asyncio.sleep(0.001)
            print(len(polls))
            os.close(theirs)
            user.remove_reader(ours)
            os.close(ours)
    """) == ["0", "1", "over"]


def test_an_idle_loop_costs_nothing() -> None:
    """However many pieces there have been: nobody runs one while there is nothing to do."""
    assert run_unhurried("""
        async def main():
            done = asyncio.Event()
            before = pieces[0]
            loop.call_soon_threadsafe(loop.call_later, 0.2, user.call_soon_threadsafe, done.set)
            user.call_later(60, print, "too late")
            await done.wait()
            print(pieces[0] - before)
    """) == ["1", "over"]


def test_timers_and_files_keep_nobody_awake() -> None:
    """The worker's loop waits awake for calls that come one after the other, not for what the user's loop has planned."""
    assert run_coroutine("""
        async def main():
            import socket
            code.spinner.allow(60.0, 1_000_000)
            awake = set()
            for _ in range(20):
                await asyncio.sleep(0.0001)
                awake.add(code.spinner._is_turning)
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            for _ in range(20):
                loop.call_soon_threadsafe(loop.call_later, 0.001, theirs.send, b"x")
                await user.sock_recv(ours, 1)
                awake.add(code.spinner._is_turning)
            ours.close(), theirs.close()
            print(awake)
    """) == ["{False}", "over"]


def test_nobody_is_told_twice() -> None:
    """The loop posts no second piece of work, timer or file callback while the first is under way."""
    assert run_unhurried("""
        async def main():
            before = pieces[0]
            for _ in range(10):
                user.call_soon_threadsafe(len, "")
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            print("pieces", pieces[0] - before)
            told = asyncio.Event()
            loop.call_soon_threadsafe(lambda: [user.call_soon_threadsafe(told.set) for _ in range(10)])
            await told.wait()
            await asyncio.sleep(0.001)
            print("pieces", pieces[0] - before)

            timers, call_at = [], loop.call_at
            made = asyncio.Event()

            def make(due, *callback):
                timers.append(call_at(due, *callback))
                user.call_soon_threadsafe(made.set)
                return timers[-1]

            loop.call_at = make
            user.call_later(50, print)
            await made.wait()
            made.clear()
            user.call_later(60, print)
            await asyncio.to_thread(len, "")
            user.call_later(40, print)
            await made.wait()
            await asyncio.to_thread(len, "")
            del loop.call_at
            print("timers", len(timers), [timer.cancelled() for timer in timers])

            calls, told = [], user._on_file_ready
            user._on_file_ready = lambda: (calls.append(1), told())
            watched, watch = asyncio.Event(), user._watch_files
            user._watch_files = lambda: (watch(), user.call_soon_threadsafe(watched.set))
            ours, theirs = os.pipe()
            user.add_reader(ours, os.read, ours, 1)
            os.write(theirs, b"x")
            await watched.wait()
            calls.clear()
            os.write(theirs, b"x")
            turned = threading.Event()
            from_loop(loop.call_later, 0.02, turned.set)
            turned.wait()
            print("calls", len(calls))
            os.close(theirs)
            user.remove_reader(ours)
            os.close(ours)
    """) == ["pieces 1", "pieces 3", "timers 2 [True, False]", "calls 1", "over"]


def test_what_comes_and_its_answer_wake_nobody() -> None:
    """From the worker's loop to a callback and back."""
    assert run_coroutine("""
        async def main():
            wakings, done = [], asyncio.Event()
            code._wake, wake = lambda: (wakings.append(1), wake()), code._wake

            def ask(number):
                user.call_soon_threadsafe(answer, number)

            def answer(number):
                if number < 100:
                    code.follow(lambda: ask(number + 1))
                else:
                    done.set()

            answer(0)
            await done.wait()
            print(wakings)
    """) == ["[]", "over"]


def test_the_workers_loop_has_its_turns_while_this_one_is_busy() -> None:
    """Whether a callback blocks, or there is always one more of them."""
    assert run_coroutine("""
        async def main():
            called = threading.Event()
            from_loop(loop.call_later, 0.01, called.set)
            print(called.wait(10))
            called.clear()
            from_loop(loop.call_later, 0.01, called.set)
            while not called.is_set() or pieces[0] < 5:
                await asyncio.sleep(0)
            print("pieces")
    """) == ["True", "pieces", "over"]


def test_work_beside_it_has_its_turns_too() -> None:
    assert run_coroutine("""
        async def main():
            numbers = []
            from_loop(lambda: [code.run(lambda number=number: numbers.append(number)) for number in range(100)])
            while len(numbers) < 100:
                await asyncio.sleep(0)
            print(numbers == list(range(100)))
    """) == ["True", "over"]


def test_what_follows_a_callback_that_blocks_is_not_kept_back() -> None:
    assert run_coroutine("""
        async def main():
            followed = threading.Event()
            code.follow(followed.set)
            print(followed.wait(10))
    """) == ["True", "over"]


def test_signals_reach_its_handlers() -> None:
    assert run_coroutine("""
        async def main():
            for _ in range(3):
                came = asyncio.Event()
                user.add_signal_handler(signal.SIGUSR1, came.set)
                user.call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)
                await came.wait()
                user.remove_signal_handler(signal.SIGUSR1)
            print("heard")
    """) == ["heard", "over"]


def test_generators_that_are_dropped_are_closed_by_it() -> None:
    """By the loop that began them, not by the worker's."""
    assert run_coroutine("""
        closed = None

        async def numbers():
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(0)
                closed.set_result(asyncio.get_running_loop() is user)

        async def main():
            global closed
            closed = user.create_future()
            async for number in numbers():
                break
            print(number, await closed)
    """) == ["1 True", "over"]
