"""The one oracle of a simulated world, and the faults that strike processes between two of their steps.

Every chance is a question ``choose(key, n)`` with an answer below n, where 0 means "nothing special". A key names what the
chance is about (``("crash", "worker/1f3c", "execute(t0)", 3)``), never how many questions came before. So a failing run can
be shrunk: leaving out a task or a fault does not change the chances of the others.

Rules
  * The answer is a function of seed and key alone, filtered by the plan: a rate for each kind, and one budget for all loud
    kinds together. Many quiet faults and few loud ones find more bugs than the reverse.
  * A loud fault strikes only once per key, since a process that is started again under its name comes to the same points.
  * All answers other than 0 are recorded. A replay with exactly those as ``overrides`` is the same run.
  * A delay and a stall can exceed every time-out of the system.
  * Faults begin when the driver is connected (``begin``), and stop for good at ``heal``: a system whose faults never stop
    may fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minray.simulation.loop import SimLoop, SimProcess
from minray.simulation.trace import FAULT, Trace

Key = tuple[Any, ...]

DELAYS_S = (0.0, 0.000_2, 0.001, 0.01, 0.1)
"""Seconds that the quiet fault ``delay`` adds to a message's latency."""
LONG_DELAYS_S = (0.0, 1.0, 12.0, 70.0)
STALLS_S = (0.0, 0.000_001, 0.05)
LONG_STALLS_S = (0.0, 1.0, 15.0, 70.0)
CUTS_S = (0.0, 0.5, 8.0, 50.0)
"""Seconds that a partition lasts; whether it is in both directions is drawn too. During the longest one, which a ``rift``
has, callers give up actors: channels break after 30 s, connecting takes 10 s, and then they begin anew. The gcs is given up
only after 60 s."""
ORPHAN_DELAYS_S = (0.001, 0.000_1, 0.1, 1.0)
"""Seconds that children live after their parent."""
REAPS_S = (0.0, 0.001, 0.01, 0.1)
"""Seconds by which the parent learns of a process's end later than its peers, whose channels break at once."""
RESETS = ("", "lost", "answer lost", "half-open here", "half-open there")
"""The ways in which a ``reset`` treats a message and its channel; see ``network``."""
BREAKS = RESETS[:3]
"""The harmless resets: both sides learn of the break at once, and ask again."""
SLOW_DISK_S = (0.0, 0.05, 1.0, 12.0)
"""Seconds added to a read or a write."""
LAST_WORDS_S = (0.0, 0.002, 0.003, 0.005, 0.01, 0.1, 12.0)
"""Seconds of delay for the last message of a node that dies right after sending it. Its death may be known before the
message arrives."""
POSTHUMOUS_S = (0.0, 0.001, 0.01, 0.3, 3.0, 12.0)
"""Seconds of delay for the last messages of a process that dies: what it was sending when it died."""
REPEATS_S = (0.0, 0.000_1, 0.02, 0.3, 3.0, 40.0)
"""Seconds after which a duplicated request arrives once more, if its channel is still open."""

QUIET = ("delay", "stall", "preempt", "orphan", "reap", "crash_prefix", "unsynced", "duplicate", "break")
SWARM = ("crash", "reset", "long_delay", "long_stall", "cut", "node_loss")
LOUD = (*SWARM, "last_words", "posthumous", "rift", "memory", "spawn")
"""Loud faults: those that a swarm draws, and five others. ``last_words`` (a node dies after a message), ``posthumous`` (one
process does) and ``rift`` (the longest partition) are for plans that say which messages are struck. ``memory`` is a node's
lack of memory, which has an effect only if the raylet's memory monitor is on. ``spawn`` is a failed start of a worker
process."""
AIMED = ("duplicate", "break", "last_words", "posthumous", "rift")
"""Faults that strike only the messages at which a plan aims, if it aims at any."""
AIMABLE = (*AIMED, "delay", "long_delay", "reset", "cut")
"""Faults of messages. Those that are not in ``AIMED`` strike all messages, unless a plan aims them too."""
SPAWNS = ("", "no process", "ends at once", "stands still")
"""The outcomes of a ``spawn`` fault; see ``machine``."""
SWITCH = "switch"
"""A user thread yields to the loop at the beginning of a line of minray's code. Each line is a chance, so rates are
small."""
SWITCHES_S = (0.0, 0.0, 0.000_2, 0.01)
"""Seconds for which such a thread yields."""
SLOW_NODE = "slow_node"
"""All processes of a node are slow while faults are active: each of their steps takes some time (``SLOW_STEPS_S``)."""
SLOW_STEPS_S = (0.0, 0.000_1, 0.001, 0.01)
DISK = ("slow_disk", "disk_busy", "disk_full", "disk_error", "torn_write")
"""Faults of spilled objects; only a plan that names them has them. The last two lose objects, and so does the second if it
strikes often in a row."""
KINDS = (*QUIET, *LOUD, SWITCH, SLOW_NODE, *DISK)
"""All kinds of faults. A plan with another name is refused, since such a fault would never happen."""

MIN_SEED, MAX_SEED = -(1 << 127), (1 << 127) - 1
WORD_BYTES = 8
"""Size of one number of chance, in bytes."""


@dataclass(frozen=True)
class FaultPlan:
    """Which faults may strike a run, how often, and where."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """Kind -> chance that an answer is not 0; kinds that are not named do not happen."""
    budget: int = 0
    """The largest number of loud faults in a run."""
    targets: tuple[str, ...] = ("worker/",)
    """Prefixes of the names of processes that may crash or stall for long."""
    spared_nodes: tuple[str, ...] = ("head",)
    """Nodes that are never lost; with the head everything would end."""
    aims: tuple[str, ...] = ()
    """Requests that the kinds of ``aimed`` may strike, like their replies; empty: all."""
    aimed: tuple[str, ...] = AIMED
    """Kinds of faults that strike only where the plan aims."""
    spared_tasks: tuple[str, ...] = ()
    """Prefixes of the names of asyncio tasks before whose steps nothing loud happens, since they do nothing of interest."""
    struck_tasks: tuple[str, ...] = ()
    """Prefixes of the only asyncio tasks before whose steps loud faults happen. Empty: all that are not spared."""
    at_messages: bool = False
    """Whether a process may also be struck before it sends or receives a message, not only before steps of its tasks."""

    def __post_init__(self) -> None:
        if not isinstance(self.rates, Mapping):
            raise TypeError(f'the rates of faults are a mapping such as {{"delay": 0.1}}, not {self.rates!r}')
        for kind, rate in self.rates.items():
            if kind not in KINDS:
                raise ValueError(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
            if not isinstance(rate, int | float) or isinstance(rate, bool):
                raise TypeError(f"the rate of {kind} is a number, not {rate!r}")
            if not 0 <= rate <= 1:
                raise ValueError(f"the rate of {kind} is a chance between 0 and 1, not {rate!r}")
        if not isinstance(self.budget, int) or isinstance(self.budget, bool):
            raise TypeError(f"the budget is how many loud faults may strike, not {self.budget!r}")
        if self.budget < 0:
            raise ValueError(f"the budget is how many loud faults may strike: it cannot be {self.budget}")
        for name, example in EXAMPLES.items():
            _check_strings(name, getattr(self, name), example)
        if unknown := set(self.aimed).difference(AIMABLE):
            raise ValueError(f"a plan cannot aim {min(unknown)!r} at messages, only {', '.join(AIMABLE)}")
        if not isinstance(self.at_messages, bool):
            raise TypeError(f"at_messages is True or False, not {self.at_messages!r}")

    @classmethod
    def named(cls, name: str, seed: int) -> FaultPlan:
        """Return the plan ``none``, ``quiet`` or ``swarm``."""
        plans = {"none": cls(), "quiet": cls.quiet(), "swarm": cls.swarm(seed)}
        if name not in plans:
            raise ValueError(f"there is no plan of faults called {name!r}, only {', '.join(plans)}")
        return plans[name]

    @classmethod
    def quiet(cls) -> FaultPlan:
        """Return a plan with all kinds of harmless irregularities, which a program on a healthy system must not notice."""
        rates = {"delay": 0.2, "stall": 0.01, "preempt": 0.1, "orphan": 0.5, "reap": 0.2, "duplicate": 0.02, "break": 0.005}
        return cls(rates)

    @classmethod
    def swarm(cls, seed: int, targets: tuple[str, ...] = ("worker/",), budget: int = 2) -> FaultPlan:
        """Return a plan of a few kinds at some rates, both drawn by the seed: different runs find different bugs."""
        if budget < 1:
            raise ValueError(f"a swarm has at least one loud fault, so its budget cannot be {budget}; see FaultPlan.quiet")
        draw = Oracle(seed)
        rates = {kind: (0.0, 0.01, 0.1, 0.4)[draw.below(("swarm", kind), 4)] for kind in QUIET}
        loud = {kind: (0.0, 0.001, 0.01)[draw.below(("swarm", kind), 3)] for kind in SWARM}
        return cls({**rates, **loud}, 1 + draw.below(("swarm", "budget"), budget), targets)

    def strikes(self, process: str, task: str) -> bool:
        """Whether loud faults may strike this process before a step of this asyncio task."""
        is_busy = task.startswith(self.struck_tasks) if self.struck_tasks else not task.startswith(self.spared_tasks)
        return is_busy and process.startswith(self.targets)

    def aimed_at(self, *targets: str) -> FaultPlan:
        return replace(self, targets=targets)


class Oracle:
    """Answers every chance of one world."""

    def __init__(self, seed: int, plan: FaultPlan | None = None, overrides: Mapping[Key, int] | None = None) -> None:
        _check_seed(seed)
        _check_overrides(overrides or {})
        self.seed = seed
        self.plan = plan or FaultPlan()
        self.overrides = overrides
        """If given, the only answers that are not 0, whatever the plan says."""
        self.active = False
        """Whether faults happen now."""
        self._is_over = False
        self.answers: dict[Key, int] = {}
        """Every answer so far that was not 0, in order."""
        self._loud_left = self.plan.budget
        drawn = [kind for kind, rate in self.plan.rates.items() if rate > 0]
        self._kinds = frozenset(drawn if overrides is None else [key[0] for key in overrides])
        self._aimed = frozenset(self.plan.aimed if self.plan.aims and overrides is None else ())
        """Kinds of faults that strike only the requests of ``FaultPlan.aims``."""
        self._secret = seed.to_bytes(16, "big", signed=True)
        self._word_hasher = hashlib.blake2b(digest_size=WORD_BYTES, key=self._secret)
        """Copied for each word of chance, which is faster than to begin with the key."""

    def wants(self, kind: str) -> bool:
        """Whether a question of this kind can have an answer other than 0."""
        return kind in self._kinds

    @property
    def aims_at_messages(self) -> bool:
        return self.overrides is not None or self.plan.at_messages

    def is_aimed_at(self, kind: str, method: str) -> bool:
        """Whether this kind of fault may strike this request or its reply."""
        return kind not in self._aimed or method in self.plan.aims

    def spares(self, node: str) -> bool:
        """Whether this node must not be lost."""
        return self.overrides is None and node in self.plan.spared_nodes

    def choose(self, key: Key, n: int) -> int:
        """Return the answer to one chance, from 0 to n - 1, and record it if it is not 0."""
        kind = key[0]
        if not self.active or kind not in self._kinds or (kind in LOUD and key in self.answers):
            return 0
        if self.overrides is not None:
            answer = min(self.overrides.get(key, 0), n - 1)
        else:
            answer = self._draw(key, n, self.plan.rates[kind])
        if answer:
            self.answers[key] = answer
        return answer

    def _draw(self, key: Key, n: int, rate: float) -> int:
        loud = key[0] in LOUD
        if loud and self._loud_left == 0:
            return 0
        number = self._word(key)
        if (number >> 32) >= rate * (1 << 32):
            return 0
        if loud:
            self._loud_left -= 1
        return 1 + (number & 0xFFFF_FFFF) % (n - 1)

    def begin(self) -> None:
        """Let faults happen, unless they have stopped for good."""
        self.active = not self._is_over

    def listen(self, on_chance: Callable[[Key, int], None]) -> None:
        """From now on call ``on_chance`` with the key and the answer of each question that is asked while faults happen.

        The fault of an answer strikes after the call.
        """
        choose = self.choose

        def listening(key: Key, n: int) -> int:
            answer = choose(key, n)
            if self.active:
                on_chance(key, answer)
            return answer

        self.choose = listening  # type: ignore[method-assign]

    def heal(self) -> None:
        """Stop all faults for good."""
        self.active, self._is_over = False, True

    # --- Chance that is no fault: entropy, clocks ---

    def bytes(self, key: Key, count: int) -> bytes:
        """Return reproducible random bytes."""
        found = b""
        while len(found) < count:
            word = repr((*key, len(found)) if found else key).encode()
            found += hashlib.blake2b(word, digest_size=min(64, max(1, count - len(found))), key=self._secret).digest()
        return found

    def below(self, key: Key, n: int) -> int:
        """Return one of 0..n-1, all equally likely."""
        return self._word(key) % n

    def _word(self, key: Key) -> int:
        """Return the number that ``bytes`` would give as ``WORD_BYTES`` bytes."""
        hasher = self._word_hasher.copy()
        hasher.update(repr(key).encode())
        return int.from_bytes(hasher.digest(), "big")


EXAMPLES = {
    "targets": "worker/",
    "spared_nodes": "head",
    "aims": "PushTask",
    "aimed": "long_delay",
    "spared_tasks": "Poll",
    "struck_tasks": "user_code",
}
"""An example of a string for each field of ``FaultPlan`` that is a tuple of strings; used in errors."""


def _check_strings(name: str, value: Any, example: str) -> None:
    """Raise TypeError unless the value is a tuple of strings. A single string would work as a prefix, but as a name it would
    match all its substrings."""
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
        written = (value,) if isinstance(value, str) else (example,)
        raise TypeError(f"{name} is a tuple of strings, as in {name}={written!r}, not {value!r}")


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"a seed is a whole number, not {seed!r}")
    if not MIN_SEED <= seed <= MAX_SEED:
        raise ValueError(f"a seed has at most 128 bits, from -2**127 to 2**127 - 1: {seed} does not fit")


def _check_overrides(overrides: Mapping[Key, int]) -> None:
    if not isinstance(overrides, Mapping):
        raise TypeError(f"overrides are a mapping of keys to answers, as `Oracle.answers` has them, not {overrides!r}")
    for key, answer in overrides.items():
        if not isinstance(key, tuple) or not key or key[0] not in KINDS:
            raise ValueError(f"the key of an override begins with a kind of fault ({', '.join(KINDS)}): {key!r} does not")
        if not isinstance(answer, int) or answer < 0:
            raise ValueError(f"the answer to {key} is a number from 0 on, not {answer!r}")


class StepFaults:
    """Crashes, stalls and lost nodes, which strike a process just before one of its tasks takes a step; and slow nodes.

    If the oracle aims at messages, faults also strike just before the process sends a message (a stall then begins after the
    current step) or receives one. Those places are called ``send PushTask``, ``receive PushTask reply``.
    """

    KINDS = ("crash", "node_loss", "long_stall", "stall")

    def __init__(self, loop: SimLoop, oracle: Oracle, trace: Trace, lose_node: Callable[[str], None]) -> None:
        self._loop = loop
        self._oracle = oracle
        self._trace = trace
        self._lose_node = lose_node
        self._is_loud = any(oracle.wants(kind) for kind in self.KINDS if kind in LOUD)
        if any(oracle.wants(kind) for kind in self.KINDS):
            loop.strike = self.strike
        if oracle.wants(SLOW_NODE):
            loop.pace = self.pace

    def strike(self, process: SimProcess, task: str, ordinal: int) -> None:
        """Ask the oracle before a step and carry out its fault; the loop's hook ``SimLoop.strike``."""
        oracle = self._oracle
        if process is self._loop.world:
            return
        place = (process.name, task, ordinal)
        if self._is_loud and (oracle.overrides is not None or oracle.plan.strikes(process.name, task)):
            where = f"before step {ordinal} of {task}"
            if oracle.choose(("crash", *place), 2):
                self._trace.add(process.name, FAULT, "crash", where)
                process.exit(None, 9)
                return
            if not oracle.spares(process.node) and oracle.choose(("node_loss", *place), 2):
                self._trace.add(process.name, FAULT, "node lost", where)
                self._lose_node(process.node)
                return
            if stall := oracle.choose(("long_stall", *place), len(LONG_STALLS_S)):
                self._trace.add(process.name, FAULT, f"stalls for {LONG_STALLS_S[stall]} s", where)
                self._loop.stall(process, LONG_STALLS_S[stall])
                return
        if stall := oracle.choose(("stall", *place), len(STALLS_S)):
            self._loop.stall(process, STALLS_S[stall])

    def pace(self, process: SimProcess) -> float:
        """Return how many seconds a step of this process takes; the loop's hook ``SimLoop.pace``."""
        if process is self._loop.world:
            return 0.0
        key = (SLOW_NODE, process.node)
        is_known = key in self._oracle.answers
        slowness = self._oracle.choose(key, len(SLOW_STEPS_S))
        if slowness and not is_known:
            self._trace.add(process.name, FAULT, f"slow node: {SLOW_STEPS_S[slowness]} s for each step", process.node)
        return SLOW_STEPS_S[slowness]
