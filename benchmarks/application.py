"""A whole application: ``examples/evolution_strategies.py``, unchanged on minray, and on Ray with its imports changed.

Four actors balance a pole. The time of a generation is measured between the lines that the program prints. The first
generation, in which actors are still being made, counts only for the whole program.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.document import RAY, Sample, Size

NAME = "application"
PROGRAM = Path(__file__).parent.parent / "examples" / "evolution_strategies.py"
IMPORTS = {"import minray as ray": "import ray", "from minray.util": "from ray.util"}


class Clock(io.StringIO):
    """A standard output that records when the line of each generation is printed."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def write(self, text: str) -> int:
        if text.startswith("generation"):
            self.times.append(time.perf_counter())
        return super().write(text)


def program(system: str) -> dict[str, Any]:
    """Run the program's source, for Ray with the imports that a user would change; return its global names."""
    source = PROGRAM.read_text()
    for ours, theirs in IMPORTS.items():
        assert ours in source, f"{PROGRAM} has no {ours!r} any more"
        source = source.replace(ours, theirs) if system == RAY else source
    names: dict[str, Any] = {"__name__": PROGRAM.stem}
    exec(compile(source, str(PROGRAM), "exec"), names)  # so that its classes travel by value
    return names


def measure(system: str, size: Size) -> Iterator[Sample]:
    main = program(system)["main"]
    generations, directions = size.pick((8, 16), (3, 8), (2, 1))
    clock = Clock()
    begun = time.perf_counter()
    with contextlib.redirect_stdout(clock):
        main(directions=directions, generations=generations)
    yield Sample(NAME, f"whole program, {generations} generations", time.perf_counter() - begun)
    for earlier, later in zip(clock.times, clock.times[1:], strict=False):
        yield Sample(NAME, "a generation", later - earlier)
