"""The words in which simulated tests say what goes wrong, and when: roles, moments, messages.

``judged`` hands its ``strike`` a ``Cluster``, which is a ``SimCluster`` with these words. Each sentence begins with a moment
and ends with a verb::

    cluster.raylet("n1").kill()                               # now
    cluster.after(5).node("n1").lose()                        # five virtual seconds later
    cluster.told("go").node("n1").lose()                      # when the body says so: kept["go"] = True
    cluster.when("PushTask reply").of("worker").kill(1)       # the worker that is about to send the first of these
    cluster.when("PushTask").to("raylet/n1").then.node("n1").lose()
    cluster.when("PushTask", "PushTask reply").break_channels(at_most=4)
    cluster.until_leased("n1").wait(1).partition("n1", "n2", 50)

Rules:

  * A role is looked up when its verb acts, not when the sentence is said.
  * ``until...`` and ``wait`` let the world go on; everything else only says what will happen.
  * Of two sentences about one message the later one looks at it first, and the earlier one only if it is still to be sent.
  * A message has one word: the method of a request, ``method reply`` for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from minray.simulation import SimCluster
from tests.simulation.actors import actor_process
from tests.simulation.interference import OnSend, break_channels, kill_sender, replay_requests, watch_sends

Do = Callable[..., Any]
"""Has an act with its arguments done, now or at a moment to come."""

kept: dict[str, Any] = {}
"""Values that tasks keep beyond their ends: all simulated processes share a module's globals. Its users empty it."""


@dataclass(frozen=True)
class Process:
    """A gcs, a raylet, a worker or a driver."""

    moment: Moment
    find: Callable[[], str]
    """Gives its name when the verb acts."""

    def kill(self) -> None:
        """``kill -9``."""
        self.moment.do(lambda: self.moment.cluster.kill(self.find()))


@dataclass(frozen=True)
class Gcs(Process):
    """The gcs; its storage survives it."""

    def start(self) -> None:
        self.moment.do(self.moment.cluster.start_gcs)

    def restart(self, pause_s: float = 0.0) -> None:
        """Kill it, and start the next one after a pause."""
        if pause_s:
            self.kill()
            self.moment.later(pause_s).gcs.start()
        else:
            self.moment.do(self._restart_at_once)

    def _restart_at_once(self) -> None:
        self.moment.cluster.kill("gcs")
        self.moment.cluster.start_gcs()


@dataclass(frozen=True)
class Node:
    """A machine."""

    moment: Moment
    find: Callable[[], str]
    """Gives its name when the verb acts."""

    def lose(self) -> None:
        """All its processes end at once, and nobody is told."""
        self.moment.do(lambda: self.moment.cluster.world.lose_node(self.find()))

    def join(self, **options: Any) -> None:
        """A raylet begins on a new machine of this name."""
        self.moment.do(lambda: self.moment.cluster.add_node(self.find(), **options))

    def kill_raylet(self) -> None:
        """``kill -9`` of its raylet; the others notice."""
        self.moment.do(lambda: self.moment.cluster.kill(f"raylet/{self.find()}"))

    def isolate(self, seconds: float) -> None:
        """No other node hears anything of this one, or is heard."""
        self.moment.do(self._isolate, seconds)

    def _isolate(self, seconds: float) -> None:
        cluster, name = self.moment.cluster, self.find()
        for other in cluster.raylets:
            cluster.world.wire.cut(name, other, seconds)

    def set(self, **switches: Any) -> None:
        """Turn switches of ``SimNode``: ``disk_full``, ``disk_tears``, ``memory_used``, ..."""
        self.moment.do(self._set, switches)

    def _set(self, switches: dict[str, Any]) -> None:
        node = self.moment.cluster.world.nodes[self.find()]
        for name, value in switches.items():
            assert hasattr(node, name), f"a simulated node has no {name}"
            setattr(node, name, value)

    def lose_files(self) -> None:
        """Remove all spill files of this node."""
        self.moment.do(lambda: self.moment.cluster.world.nodes[self.find()].files.clear())


@dataclass(frozen=True)
class Moment:
    """When something happens: the nouns of a sentence hang on it."""

    cluster: Cluster
    do: Do
    after_s: float | None = 0.0
    """Virtual seconds from now; None: nobody knows yet."""
    senders: Sequence[str] = ()
    """Names of the processes that have sent the messages of this moment."""

    @property
    def sender(self) -> Process:
        """The process that has sent the first of the messages."""
        return Process(self, lambda: self.senders[0])

    @property
    def gcs(self) -> Gcs:
        return Gcs(self, lambda: "gcs")

    def raylet(self, node: str) -> Process:
        return Process(self, lambda: f"raylet/{node}")

    def worker_of(self, task: str) -> Process:
        """The worker that runs a function or method of this name."""
        return Process(self, lambda: self.cluster.name_of_worker(task))

    def actor(self, index: int = 0) -> Process:
        """The worker of a living actor, by the order in which their workers began."""
        return Process(self, lambda: actor_process(self.cluster, index))

    def process(self, name: str) -> Process:
        return Process(self, lambda: name)

    def node(self, name: str) -> Node:
        return Node(self, lambda: name)

    def node_of_actor(self, index: int = 0) -> Node:
        """The node of a living actor; see ``actor``."""
        return Node(self, lambda: self.cluster.node_of(actor_process(self.cluster, index)))

    def owner_of_actor(self) -> Process:
        """The process that has created the first actor that the gcs knows."""
        return Process(self, self.cluster.name_of_owner)

    def partition(self, one: str, other: str, seconds: float | None = None) -> None:
        """Cut two nodes off from each other for some seconds; None: until the faults stop."""
        self.do(lambda: self.cluster.world.wire.cut(one, other, seconds))

    @property
    def soon(self) -> Moment:
        """When what happens at this moment is over."""
        call_soon = self.cluster.world.loop.world.call_soon
        return Moment(self.cluster, lambda act, *args: self.do(call_soon, act, *args), self.after_s, self.senders)

    def later(self, seconds: float) -> Moment:
        """Some virtual seconds after this moment."""
        if self.after_s is not None:
            return self.cluster.after(self.after_s + seconds)
        world = self.cluster.world.loop.world
        return Moment(self.cluster, lambda act, *args: self.do(world.call_later, seconds, act, *args), None, self.senders)


@dataclass(frozen=True)
class Messages:
    """Messages of some words, and what becomes of them."""

    cluster: Cluster
    words: tuple[str, ...]
    sender: str = ""
    """How the names of the senders begin; empty: all."""
    receiver: str = ""
    node: str = ""
    """Where the receivers are; empty: anywhere."""

    def of(self, role: str) -> Messages:
        """Only those that such a process sends: ``worker``, ``gcs``, ``raylet/n1``, ..."""
        return replace(self, sender=role)

    def to(self, role: str) -> Messages:
        """Only those that such a process receives."""
        return replace(self, receiver=role)

    def to_node(self, name: str) -> Messages:
        """Only those that arrive on this node."""
        return replace(self, node=name)

    def kill(self, *numbers: int, code: int | None = None, late_s: float | None = None) -> None:
        """Kill the process that is about to send the n-th (the first, if none is named); see ``kill_sender``."""
        (word,) = self.words
        assert not self.receiver
        kill_sender(self.cluster, word, *(numbers or (1,)), role=self.sender or "worker", code=code, late_s=late_s)

    def break_channels(self, at_most: int, one_in: int = 2) -> None:
        """Break the channel at some of these, before or after their delivery (see ``interference``)."""
        assert not self.sender and not self.receiver
        break_channels(self.cluster, self.words, at_most, one_in)

    def replay(self, one_in: int = 2) -> None:
        """Let some of these requests arrive a second time, up to 40 s later (see ``interference``)."""
        assert not self.sender and not self.receiver
        replay_requests(self.cluster, self.words, one_in)

    def note(self, seen: list[str]) -> None:
        """Append the word of each of these."""
        self._watch(lambda end, message, word: seen.append(word) is None)

    def lose(self, *numbers: int) -> None:
        """Do not send the n-th (the first, if none is named)."""
        self._at(numbers or (1,), lambda end, message: False)

    def lose_all(self) -> None:
        """Send none of these."""
        self._at((), lambda end, message: False)

    def lose_with_channel(self, *numbers: int) -> None:
        """Break the channel at the n-th (the first, if none is named), which does not arrive."""

        def shut(end: Any, message: Any) -> bool:
            end.pipe.shut()
            end.other.pipe.shut()
            return False

        self._at(numbers or (1,), shut)

    def delay(self, seconds: float, *numbers: int) -> None:
        """Let the n-th (the first, if none is named) travel for some seconds; messages behind it on its channel wait."""

        def late(end: Any, message: Any) -> bool:
            end.pipe.put(message, seconds)
            return False

        self._at(numbers or (1,), late)

    def hold(self, seconds: float, *numbers: int) -> None:
        """Send the n-th (the first, if none is named) later; others overtake it."""

        def hold(end: Any, message: Any) -> bool:
            self.cluster.world.loop.world.call_later(seconds, end.pipe.put, message)
            return False

        self._at(numbers or (1,), hold)

    @property
    def then(self) -> Moment:
        """When the first of these is about to be sent, which it is all the same unless its sender ends."""
        return self.number(1)

    @property
    def always(self) -> Moment:
        """Whenever one of these is about to be sent."""
        return self.number()

    def number(self, *numbers: int) -> Moment:
        """When the n-th of these is about to be sent."""

        senders: list[str] = []

        def do(act: Do, *args: Any) -> None:
            def on_send(end: Any, message: Any) -> bool:
                senders.append(end.pipe.source.name)
                act(*args)
                return bool(end.pipe.source.alive)

            self._at(numbers, on_send)

        return Moment(self.cluster, do, None, senders)

    def _at(self, numbers: tuple[int, ...], act: Callable[[Any, Any], bool]) -> None:
        count = 0

        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal count
            count += 1
            return act(end, message) if not numbers or count in numbers else True

        self._watch(on_send)

    def _watch(self, on_send: OnSend) -> None:
        def asked(end: Any, message: Any, word: str) -> bool:
            is_meant = (not self.words or word in self.words) and end.pipe.source.name.startswith(self.sender)
            is_meant = is_meant and end.pipe.target.name.startswith(self.receiver)
            if is_meant and self.node in ("", end.other.pipe.source.node):
                return on_send(end, message, word)
            return True

        watch_sends(self.cluster, asked)


@dataclass
class _Told:
    """Looks every so often whether the body has said a word, and then does what waits for it."""

    cluster: Cluster
    word: str
    every_s: float
    acts: list[tuple[Do, tuple[Any, ...]]] = field(default_factory=list)

    def do(self, act: Do, *args: Any) -> None:
        self.acts.append((act, args))
        if len(self.acts) == 1:
            self.cluster.world.loop.world.call_later(self.every_s, self.look)

    def look(self) -> None:
        if kept.pop(self.word, None):
            for act, args in self.acts:
                act(*args)
        else:
            self.cluster.world.loop.world.call_later(self.every_s, self.look)


class Cluster(SimCluster):
    """A simulated cluster to which one says what goes wrong."""

    @cached_property
    def now(self) -> Moment:
        return Moment(self, lambda act, *args: act(*args))

    def after(self, seconds: float) -> Moment:
        """Some virtual seconds from now."""
        world = self.world.loop.world
        return Moment(self, lambda act, *args: world.call_later(seconds, act, *args), seconds)

    def told(self, word: str, every_s: float = 0.1) -> Moment:
        """When the body has set ``kept[word]``; it is looked at every so often."""
        return Moment(self, _Told(self, word, every_s).do, None)

    def when(self, *words: str) -> Messages:
        """When such messages are sent; all, if no word is given."""
        return Messages(self, words)

    # --- What acts at once ---

    def raylet(self, node: str) -> Process:
        return self.now.raylet(node)

    def worker_of(self, task: str) -> Process:
        return self.now.worker_of(task)

    def actor(self, index: int = 0) -> Process:
        return self.now.actor(index)

    def process(self, name: str) -> Process:
        return self.now.process(name)

    def node(self, name: str) -> Node:
        return self.now.node(name)

    def partition(self, one: str, other: str, seconds: float | None = None) -> None:
        self.now.partition(one, other, seconds)

    # --- Letting time pass ---

    def wait(self, seconds: float) -> Self:
        """Let some virtual seconds pass."""
        self.world.loop.run_until_complete(asyncio.sleep(seconds))
        return self

    def until(self, condition: Callable[[], bool]) -> Self:
        """Let the world go on until something is true."""
        self.wait_until(condition)
        return self

    def until_leased(self, node: str, count: int = 1) -> Self:
        """Wait until a raylet knows this number of leases; requests that wait count."""
        return self.until(lambda: len(self.raylets[node]._broker.entries) >= count)

    def until_leaving(self, node: str) -> Self:
        """Wait until a raylet knows that its node is to leave."""
        return self.until(lambda: self.raylets[node]._broker.leaving is not None)

    # --- Who is who ---

    def name_of_worker(self, task: str) -> str:
        for process in self.workers():
            current = self.cores[process.name].execution.executor.current if process.name in self.cores else None
            if current is not None and current.header.template.name.rpartition(".")[2] == task:
                return process.name
        raise LookupError(f"no worker runs {task}")

    def node_of(self, worker: str) -> str:
        return next(process.node for process in self.workers() if process.name == worker)

    def name_of_owner(self) -> str:
        gcs: Any = self.gcs
        owner = gcs._actors.rows()[0].info.owner.worker_id
        return next(name for name, core in self.cores.items() if core.config.worker_id == owner)
