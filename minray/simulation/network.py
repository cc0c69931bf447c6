"""The simulated network: ordered channels between simulated processes, over one wire that can go wrong.

The network uses all the freedom that the contract in ``minray.platform.base`` allows. The messages of a channel arrive in
order (except those with large buffers), after a time drawn for each, or the channel breaks. After a break a suffix of each
direction is lost.

What can go wrong, beside delays (the keys of ``faults`` name the link, the method, and the number of the message)
  * A reset strikes when a message is sent. The message is lost; or it arrives and the answer is lost; or one side learns
    of the break only half a minute later (half-open). A break is one of the first two, and can be aimed at some requests.
  * A request arrives a second time, at once or much later: its work has been done, and may have been undone since (G112).
  * A cut (a partition) between two nodes, in both directions or one, holds messages back. It heals, or channels break after
    30 s.
  * Of the messages of a process that crashes only a prefix arrives; then its peers see the channel end.
  * A node dies right after it has sent a message. The node's death may be known before the message arrives.
  * One process dies like this. All its messages that are on their way are late, and come after the news of its death.
  * A node that is lost is silent: channels to it break after 30 s, and new ones cannot be opened.

An endpoint may be a name (``SimWire.names``), as in a cluster's name service. It is resolved at each attempt to connect.

``minray.simulation.costs`` says how long a message takes.

Left out: more than one path between two nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from minray.platform.base import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectRefused,
    Counters,
    OnIncoming,
    PlatformError,
    WrongIncarnation,
)
from minray.platform.transport.queued_channel import CALL, CLOSE, Message
from minray.simulation.channel import Pipe, SimChannelEnd
from minray.simulation.costs import LOCAL_LATENCY_S, REMOTE_LATENCY_S, Costs
from minray.simulation.faults import (
    BREAKS,
    CUTS_S,
    DELAYS_S,
    LAST_WORDS_S,
    LONG_DELAYS_S,
    POSTHUMOUS_S,
    REPEATS_S,
    RESETS,
    Oracle,
)
from minray.simulation.loop import SimLoop, SimProcess
from minray.simulation.trace import FAULT, LIFE, RECEIVE, SEND, Trace

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 30.0
"""Seconds without an acknowledgement after which a channel breaks, as with the keepalive of real channels."""
MESSAGE_FAULTS = ("delay", "long_delay", "reset", "cut", "rift", "duplicate", "break", "last_words", "posthumous")
MOST_BREAKS = 5
"""The largest number of "break" faults per link: one that breaks at every message would transport none."""
NEVER_REPEATED = ("ExitWorker", "Shutdown")
"""Requests that are never duplicated: their sender waits for the reply, and never repeats them after it has given up."""


class SimListener:
    """Implements ``base.Listener`` on the simulated wire."""

    def __init__(self, network: SimNetwork, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> None:
        self.network = network
        self.endpoint = endpoint
        self.identity = identity
        self.on_incoming = on_incoming
        self.ends: dict[SimChannelEnd, None] = {}
        """This side's ends of the channels that came in."""
        self.knocking: dict[asyncio.Future[SimChannelEnd], SimProcess] = {}
        """Connections on their way here: the caller's future -> its process."""

    async def close(self) -> None:
        wire = self.network.wire
        if wire.listeners.get(self.endpoint) is self:
            del wire.listeners[self.endpoint]
        self.refuse_knocking()
        ends, self.ends = self.ends, {}
        for end in ends:
            end.close()

    def refuse_knocking(self) -> None:
        for caller, process in self.knocking.items():
            error = ConnectRefused(f"{self.endpoint}: its listener was closed")
            process.call_later(REMOTE_LATENCY_S, fail_softly, caller, error)
        self.knocking.clear()


class SimNetwork:
    """Implements ``base.Network``; one per process."""

    def __init__(self, wire: SimWire, process: SimProcess, token: bytes = b"") -> None:
        self.wire = wire
        self.process = process
        self.token = token
        self.counters = Counters()
        self.ends: dict[SimChannelEnd, None] = {}
        """The open channel ends of this process, in the order in which they were made."""
        self.listeners: list[SimListener] = []
        self._frame: tuple[SimChannelEnd, int] | None = None
        """(channel end, tick) of the last message: further ones of that end at that tick count as the same frame."""
        process.on_death.append(self._on_death)

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> SimListener:
        if endpoint.startswith("tcp:") and endpoint.endswith(":0"):
            endpoint = f"{endpoint[:-1]}{self.wire.next_port()}"
        elif not endpoint.startswith(("sim:", "tcp:")) or len(endpoint) == 4:
            raise PlatformError(f"{endpoint}: not a simulated endpoint; those look like sim:name, or tcp:host:port")
        if endpoint in self.wire.listeners:
            raise PlatformError(f"{endpoint}: another process listens there")
        listener = SimListener(self, endpoint, identity, on_incoming)
        self.wire.listeners[endpoint] = listener
        self.listeners.append(listener)
        return listener

    async def connect(
        self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]
    ) -> SimChannelEnd:
        caller: asyncio.Future[SimChannelEnd] = asyncio.get_running_loop().create_future()
        self.wire.knock(self, endpoint, target, identity, on_close, caller)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await caller
        except TimeoutError:
            raise ConnectFailed(f"{endpoint}: no answer within {CONNECT_TIMEOUT_S:.0f} s") from None
        finally:
            del caller  # It refers to the error too, whose traceback refers to this frame.

    def send(self, end: SimChannelEnd, message: Message) -> None:
        """Put a message of this process on its way."""
        if message.kind == CLOSE:
            end.pipe.put(message)
        else:
            self._count_frame(end)
            self.wire.send(end, message)

    def shut(self, end: SimChannelEnd) -> None:
        end.pipe.shut()

    def on_message(self, end: SimChannelEnd, message: Message) -> None:
        event = self.wire.trace.add(self.process.name, RECEIVE, message.word, end.pipe.target.name)
        self.wire.trace.senders[event] = message.event

    def _count_frame(self, end: SimChannelEnd) -> None:
        frame = (end, self.process.loop.ticks)
        if frame != self._frame:
            self._frame = frame
            self.counters.frames += 1

    def forget(self) -> None:
        """Drop what the dead process needs no more, open calls above all: the garbage collector cannot free them."""
        for end in self.ends:
            end.forget()
        self.ends.clear()
        self.listeners.clear()

    def _on_death(self) -> None:
        self.wire.on_death(self)


class SimWire:
    """Connects all processes of a world, and strikes their messages with faults."""

    def __init__(self, loop: SimLoop, oracle: Oracle, trace: Trace, costs: Costs | None = None) -> None:
        costs = costs or Costs()
        self.loop = loop
        self.trace = trace
        self.latency_s, self.carry_s = costs.latency_s, costs.carry_s
        self.listeners: dict[str, SimListener] = {}
        self.names: dict[str, str] = {}
        """Names of endpoints -> the endpoint to which each leads now."""
        self._oracle = oracle
        self._counts: dict[tuple[str, str], int] = {}
        """Number of messages by link (over all its channels) and method."""
        self._breaks: dict[str, int] = {}
        """Number of "break" faults of each link so far."""
        self._cuts: dict[tuple[str, str], int] = {}
        """(from node, to node) -> number of cuts that hold messages back in that direction."""
        self._held: dict[Pipe, None] = {}
        self._lost_nodes: dict[str, None] = {}
        self._lost_endpoints: dict[str, str] = {}
        """Endpoints of listeners on lost nodes -> node."""
        self.aims_at_messages = oracle.aims_at_messages
        self._message_faults = frozenset(kind for kind in MESSAGE_FAULTS if oracle.wants(kind))
        self._last_port = 40_000

    def next_port(self) -> int:
        """Return a fresh port for a listener that asks for port 0."""
        self._last_port += 1
        return self._last_port

    # --- Opening ---

    def knock(
        self,
        network: SimNetwork,
        endpoint: str,
        target: bytes,
        identity: bytes,
        on_close: Callable[[], None],
        caller: asyncio.Future[SimChannelEnd],
    ) -> None:
        """Try to connect: ``caller`` receives a channel or an error, or nothing, as from a lost node or across a cut."""
        process = network.process
        endpoint = self.names.get(endpoint, endpoint)
        listener = self.listeners.get(endpoint)
        if listener is None:
            if endpoint not in self._lost_endpoints:
                error = ConnectRefused(f"{endpoint}: nobody listens there")
                process.call_later(2 * LOCAL_LATENCY_S, fail_softly, caller, error)
            return
        there = listener.network.process
        if self.is_cut(process, there) or self.is_cut(there, process):
            return
        listener.knocking[caller] = process
        delay_s = self._delay_s(f"{process.name}>{there.name}", "connect", "connect", ("delay", "long_delay"))
        there.call_later(
            REMOTE_LATENCY_S + delay_s, self._let_in, listener, network, target, identity, on_close, caller
        )

    def _let_in(
        self,
        listener: SimListener,
        network: SimNetwork,
        target: bytes,
        identity: bytes,
        on_close: Callable[[], None],
        caller: asyncio.Future[SimChannelEnd],
    ) -> None:
        """Check token and incarnation, on the listener's side, and build both ends of the channel."""
        if listener.knocking.pop(caller, None) is None or not network.process.alive:
            return
        back = network.process.call_later
        if network.token != listener.network.token:
            error: ConnectFailed = AuthenticationFailed(f"{listener.endpoint}: it does not know the cluster token")
            back(REMOTE_LATENCY_S, fail_softly, caller, error)
        elif target not in (b"", listener.identity):
            error = WrongIncarnation(f"{listener.endpoint}: incarnation {target.hex()} is gone")
            back(REMOTE_LATENCY_S, fail_softly, caller, error)
        else:
            near = SimChannelEnd(network, listener.identity, on_close, _nothing_comes_in)
            far = SimChannelEnd(listener.network, identity, lambda: listener.ends.pop(far, None), listener.on_incoming)
            near.pipe = Pipe(self, network.process, listener.network.process, far.receive)
            far.pipe = Pipe(self, listener.network.process, network.process, near.receive)
            near.other, far.other = far, near
            listener.ends[far] = None
            for end in (near, far):
                end.network.ends[end] = None
            back(REMOTE_LATENCY_S, self._opened, near, caller)

    def _opened(self, near: SimChannelEnd, caller: asyncio.Future[SimChannelEnd]) -> None:
        if caller.done():
            near.close()
        elif near.closed:
            caller.set_exception(ConnectFailed("the channel broke while it was opened"))
        else:
            caller.set_result(near)

    # --- Sending ---

    def send(self, end: SimChannelEnd, message: Message) -> None:
        """Put a message on its way, and strike it with the faults that the oracle chooses."""
        pipe = end.pipe
        word = message.word
        if self.aims_at_messages:
            self._maybe_strike(pipe.source, f"send {word}")
        if not pipe.source.alive:
            return
        message.event = self.trace.add(pipe.source.name, SEND, word, pipe.target.name)
        if not self._message_faults:
            pipe.put(message)
            return
        link = f"{pipe.source.name}>{pipe.target.name}"
        delay_s = self._delay_s(link, word, message.method, self._message_faults)
        place = (link, word, self._counts.get((link, word), 0))
        if cut := self._choose("cut", message, place, 2 * len(CUTS_S) - 1):
            duration_s = CUTS_S[(cut + 1) // 2]
            self.cut(pipe.source.node, pipe.target.node, duration_s, both_ways=cut % 2 == 1)
        reset = RESETS[self._choose("reset", message, place, len(RESETS))]
        if rift := self._choose("rift", message, place, 3):
            self.cut(pipe.source.node, pipe.target.node, CUTS_S[-1], both_ways=rift == 1)
        reset = reset or self._break(message, place)
        self._maybe_repeat(end, message, place)
        spares = self._oracle.spares(pipe.source.node)
        last_words = 0 if spares else self._choose("last_words", message, place, len(LAST_WORDS_S))
        delay_s += LAST_WORDS_S[last_words]
        posthumous = self._posthumous(pipe.source, message, place)
        if reset != "lost" and not reset.startswith("half-open"):
            pipe.put(message, delay_s)
        if reset:
            self.trace.add(pipe.source.name, FAULT, f"reset of {link}: {reset}", word)
            self._reset(end, reset)
        if last_words:
            self._end_node(pipe.source.node, word)
        elif posthumous:
            self._end_process(end, word, POSTHUMOUS_S[posthumous])

    def _choose(self, kind: str, message: Message, place: tuple[str, str, int], n: int) -> int:
        """Ask the oracle for a fault of this message, if there are faults of this kind and they are aimed at it."""
        if kind not in self._message_faults or not self._oracle.is_aimed_at(kind, message.method):
            return 0
        return self._oracle.choose((kind, *place), n)

    def _posthumous(self, source: SimProcess, message: Message, place: tuple[str, str, int]) -> int:
        if "posthumous" not in self._message_faults:
            return 0
        is_target = self._oracle.overrides is not None or source.name.startswith(self._oracle.plan.targets)
        return self._choose("posthumous", message, place, len(POSTHUMOUS_S)) if is_target else 0

    def _end_process(self, end: SimChannelEnd, word: str, delay_s: float) -> None:
        """Crash a process, and let all that it has sent and that has not arrived come later."""
        source = end.pipe.source
        self.trace.add(source.name, FAULT, f"ends; its last messages come {delay_s} s late", word)
        for each in end.network.ends:
            each.pipe.hold_back(delay_s)
        source.exit(None, 9)

    def _end_node(self, node: str, word: str) -> None:
        """Crash all processes of a node at once."""
        self.trace.add(node, FAULT, "ends", f"with its last words: {word}")
        for process in list(self.loop.processes):
            if process.node == node:
                process.exit(None, 9)

    def _break(self, message: Message, place: tuple[str, str, int]) -> str:
        link = place[0]
        broken = self._breaks.get(link, 0)
        how = self._choose("break", message, place, len(BREAKS)) if broken < MOST_BREAKS else 0
        self._breaks[link] = broken + bool(how)
        return BREAKS[how]

    def _maybe_repeat(self, end: SimChannelEnd, message: Message, place: tuple[str, str, int]) -> None:
        if message.kind == CALL and message.method not in NEVER_REPEATED:
            late = self._choose("duplicate", message, place, len(REPEATS_S))
            if late:
                self.loop.world.call_later(REPEATS_S[late], self._repeat, end, message)

    def _repeat(self, end: SimChannelEnd, message: Message) -> None:
        if not end.closed:
            end.pipe.put(message)

    def _maybe_strike(self, process: SimProcess, place: str) -> None:
        if self.loop.strike is not None and process.alive:
            self.loop.strike(process, place, process.next_ordinal(place))

    def _reset(self, end: SimChannelEnd, how: str) -> None:
        back = end.other.pipe
        end.pipe.shut(delay_s=SILENCE_S if how == "half-open there" else 0.0)
        back.shut(lose=0 if how == "lost" else back.length(), delay_s=SILENCE_S if how == "half-open here" else 0.0)

    def _delay_s(self, link: str, word: str, method: str, kinds: Collection[str]) -> float:
        if not self._message_faults:
            return 0.0
        ordinal = self._counts[(link, word)] = self._counts.get((link, word), 0) + 1
        choose, is_aimed_at, delay_s = self._oracle.choose, self._oracle.is_aimed_at, 0.0
        if is_aimed_at("delay", method):
            delay_s = DELAYS_S[choose(("delay", link, word, ordinal), len(DELAYS_S))]
        may_be_late = "long_delay" in kinds and is_aimed_at("long_delay", method)
        if may_be_late and (late := choose(("long_delay", link, word, ordinal), len(LONG_DELAYS_S))):
            self.trace.add(link.partition(">")[0], FAULT, f"{LONG_DELAYS_S[late]} s late: {word}", link)
            delay_s += LONG_DELAYS_S[late]
        return delay_s

    # --- Faults of the wire ---

    def is_cut(self, source: SimProcess, target: SimProcess) -> bool:
        """Whether a cut holds back messages from ``source`` to ``target``."""
        return bool(self._cuts) and (source.node, target.node) in self._cuts

    def cut(self, one: str, other: str, duration_s: float | None, both_ways: bool = True) -> None:
        """Hold back messages between two nodes, for ``duration_s`` or (None) until ``heal``; one way or both ways."""
        if one == other:
            return
        self.trace.add("wire", FAULT, "cut" if both_ways else "cut one way", one, other)
        for pair in [(one, other), (other, one)][: 1 + both_ways]:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
            if duration_s is not None:
                self.loop.world.call_later(duration_s, self._mend, pair)

    def _mend(self, pair: tuple[str, str]) -> None:
        if pair not in self._cuts:
            return
        self._cuts[pair] -= 1
        if self._cuts[pair] == 0:
            del self._cuts[pair]
            self.trace.add("wire", LIFE, "mended", *pair)
            self._release_held()

    def heal(self) -> None:
        """End all cuts."""
        self._cuts.clear()
        self._release_held()

    def _release_held(self) -> None:
        for pipe in list(self._held):
            if not self.is_cut(pipe.source, pipe.target):
                del self._held[pipe]
                pipe.let_go()

    def hold(self, pipe: Pipe) -> None:
        """Note that a cut holds this pipe. If it is not released within ``SILENCE_S``, the channel breaks for both sides."""
        self._held[pipe] = None
        self.loop.world.call_later(SILENCE_S, self._maybe_give_up, pipe, pipe.held_since)

    def _maybe_give_up(self, pipe: Pipe, held_since: int) -> None:
        if pipe in self._held and pipe.held_since == held_since:
            there = pipe.end_there()
            for each in (pipe, there.pipe):
                self._held.pop(each, None)
                each.give_up()

    def on_death(self, network: SimNetwork) -> None:
        """Free the endpoints of a dead process, and let its peers see its channels end."""
        process = network.process
        lost = process.node in self._lost_nodes
        for listener in network.listeners:
            if self.listeners.get(listener.endpoint) is listener:
                del self.listeners[listener.endpoint]
                if lost:
                    self._lost_endpoints[listener.endpoint] = process.node
            if not lost:
                listener.refuse_knocking()
        for end in list(network.ends):
            there = end.pipe.target.name
            lose = self._oracle.choose(("crash_prefix", process.name, there), 4) if not lost else end.pipe.length()
            end.pipe.shut(lose=lose, delay_s=SILENCE_S if lost else 0.0)
        network.forget()

    def lose_node(self, node: str) -> None:
        """Silence a node from now on. Must be called before its processes die."""
        self._lost_nodes[node] = None

    def replace_node(self, node: str) -> None:
        """Replace a lost node by a new machine at its address, which refuses connections to the old endpoints at once."""
        del self._lost_nodes[node]
        self._lost_endpoints = {endpoint: place for endpoint, place in self._lost_endpoints.items() if place != node}


def fail_softly(caller: asyncio.Future[SimChannelEnd], error: PlatformError) -> None:
    if not caller.done():
        caller.set_exception(error)


def _nothing_comes_in(incoming: object) -> None:
    raise AssertionError("the connecting side receives replies only")


