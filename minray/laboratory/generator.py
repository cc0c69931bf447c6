"""Generates workloads: instances of a shape that arrive over time, with drawn durations and sizes.

Ray: has no counterpart

    generate(Load.parse("map-reduce:width=16,depth=2,count=20,arrivals=poisson,rate=0.5,duration=2,output=10e6"), seed=7)

A load is written in one word, the shape, and settings behind it. The seed decides all that is drawn. Arrivals are open-loop:
the next instance arrives whether or not earlier ones have ended, so that a system that is too slow has a growing queue.

Left out: correlation between durations and sizes, and rates that change with the time of the day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from minray.laboratory.draws import Draws
from minray.laboratory.shapes import SHAPES
from minray.laboratory.workload import CPU, TraceActor, TraceError, TraceTask, Workload, checked

MAX_TASKS = 1_000_000
"""The largest number of tasks that are generated, against slips of the keyboard: they are all kept in memory."""
SIGMA = 1.0
"""Deviation of the logarithm in the log-normal distribution."""
ALPHA = 1.5
"""Tail index of the Pareto distribution: a heavy tail, with a mean and without a variance."""

DISTRIBUTIONS: dict[str, Callable[[Draws, float], float]] = {
    "constant": lambda draws, mean: mean,
    "uniform": lambda draws, mean: draws.uniform(0.0, 2 * mean),
    "exponential": lambda draws, mean: draws.exponential(mean),
    "lognormal": lambda draws, mean: draws.lognormal(mean, SIGMA),
    "pareto": lambda draws, mean: draws.pareto(mean, ALPHA),
}
"""How durations and sizes are drawn, given their mean."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A load to generate. The names of the fields are the settings of the command line."""

    shape: str
    width: int = 8
    depth: int = 2
    """Width and depth of an instance: ``shapes`` says what they mean."""
    count: int = 1
    """Number of instances."""
    arrivals: str = "at-once"
    """``at-once``; ``regular`` or ``poisson``, with ``rate`` instances in a second; ``bursts``, of ``burst`` instances each,
    which come as a Poisson process so that there are ``rate`` instances in a second."""
    rate: float = 1.0
    burst: int = 10
    duration: float = 1.0
    """Mean duration of a task in seconds."""
    durations: str = "constant"
    output: float = 0.0
    """Mean size of a task's result in bytes."""
    outputs: str = "constant"
    cpus: float = 1.0
    """CPUs of a task, or of an actor as long as it lives."""
    groups: int = 1
    """Number of users to whom the instances belong, in turn."""

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read ``shape:setting=value,setting=value``. Raises TraceError."""
        shape, _, rest = text.partition(":")
        settings: dict[str, str] = {"shape": shape}
        for part in rest.split(",") if rest else []:
            name, equals, value = part.partition("=")
            if not equals or name not in cls.__struct_fields__ or name in settings:
                known = ", ".join(cls.__struct_fields__[1:])
                raise TraceError(f"{text}: {part!r} is no setting; write name=value, with each of {known} at most once")
            settings[name] = value
        try:
            load = msgspec.convert(settings, cls, strict=False)
        except msgspec.ValidationError as error:
            raise TraceError(f"{text}: a setting has no such value: {error}") from None
        load.check(text)
        return load

    def check(self, where: str) -> None:
        words: dict[str, Iterable[str]] = {"shape": SHAPES, "arrivals": ARRIVALS}
        words |= {"durations": DISTRIBUTIONS, "outputs": DISTRIBUTIONS}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise TraceError(f"{where}: {name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        for name in ("width", "depth", "count", "burst", "groups"):
            if not 1 <= getattr(self, name) <= MAX_TASKS:
                raise TraceError(f"{where}: {name} is {getattr(self, name)}; give a number from 1 to {MAX_TASKS}")
        for name in ("rate", "duration", "output", "cpus"):
            if not 0 <= getattr(self, name) < math.inf or (name == "rate" and not self.rate):
                raise TraceError(f"{where}: {name} is {getattr(self, name)}; give a number from 0 (rate: above 0)")
        if self.shape == "fft" and self.width & (self.width - 1):
            raise TraceError(f"{where}: an fft has a width that is a power of two, not {self.width}")
        if self.shape == "tree" and (self.width < 2 or self.width ** min(self.depth - 1, 64) > MAX_TASKS):
            raise TraceError(f"{where}: a tree has a width from 2, and width ** (depth - 1) leaves, at most {MAX_TASKS}")


def _at_once(load: Load, draws: Draws) -> Iterator[float]:
    while True:
        yield 0.0


def _regular(load: Load, draws: Draws) -> Iterator[float]:
    for index in range(load.count):
        yield index / load.rate


def _poisson(load: Load, draws: Draws) -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += draws.exponential(1 / load.rate)
        yield now_s


def _bursts(load: Load, draws: Draws) -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += draws.exponential(load.burst / load.rate)
        for _ in range(load.burst):
            yield now_s


ARRIVALS = {"at-once": _at_once, "regular": _regular, "poisson": _poisson, "bursts": _bursts}
"""How instances arrive: name -> the times of arrival, in order and at least as many as there are instances."""


def generate(load: Load, seed: int) -> Workload:
    """Generate a workload. The same load and seed give the same workload."""
    times = ARRIVALS[load.arrivals](load, Draws(seed, "arrivals"))
    durations, sizes = Draws(seed, "durations"), Draws(seed, "outputs")
    draw_duration, draw_size = DISTRIBUTIONS[load.durations], DISTRIBUTIONS[load.outputs]
    places = SHAPES[load.shape](load.width, load.depth)
    if load.count * len(places) > MAX_TASKS:
        raise TraceError(f"{load.shape}: {load.count} instances of {len(places)} tasks each are more than {MAX_TASKS} tasks")
    resources = {} if load.cpus == 1 else {CPU: load.cpus}
    tasks, actors = [], []
    for instance, arrival_s in zip(range(load.count), times, strict=False):
        for number in sorted({place.actor for place in places if place.actor is not None}):
            actors.append(TraceActor(f"{instance}.{number}", round(arrival_s, 6), resources={CPU: load.cpus}))
        for number, place in enumerate(places):
            task = TraceTask(
                id=f"{instance}.{number}",
                duration_s=round(draw_duration(durations, load.duration), 6),
                inputs=tuple((f"{instance}.{source}", 0) for source in place.inputs),
                outputs=(round(draw_size(sizes, load.output)),),
                resources=resources if place.actor is None else {},
                arrival_s=round(arrival_s, 6),
                group=f"user {instance % load.groups}",
                kind=place.kind,
                actor="" if place.actor is None else f"{instance}.{place.actor}",
            )
            tasks.append(task)
    return checked(Workload(load.shape, tuple(tasks), actors=tuple(actors)), load.shape)
