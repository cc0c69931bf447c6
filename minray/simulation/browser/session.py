"""The session of a page with its web worker: runs of scripts, and explanations of their unfinished tasks.

    session = Session(post)
    session.perform('{"script": {"source": "...", "seed": 7}}')       the page calls it by callPromising

Rules
  * A question is JSON, an answer JSON in an array of bytes. A wrong question raises ValueError with a sentence for the page.
  * While a script runs, ``post`` gets what the page can draw meanwhile, not more often than the page can draw it.
  * Each question is a run of its own, from the beginning. The same script has the same run, so a moment is found again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from js import performance
from pyodide.ffi import to_js

from minray.simulation.browser.answers import DRAWN_EVENTS, PageQuestion, answer_of, explained
from minray.simulation.browser.stacks import put_away, steady_tracing
from minray.simulation.cluster import SimCluster
from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.page import page_data
from minray.simulation.script import Stage

EVENTS_BETWEEN_LOOKS = 64
"""Number of events after which the clock is looked at."""
POST_MS = 700.0
"""Real milliseconds between two pictures of a run that goes on: one takes about a hundred to make and to draw."""


class Session:
    """Answers the page's questions, one at a time."""

    def __init__(self, post: Callable[[Any], object]) -> None:
        """``post`` takes an answer about a run that goes on."""
        self._post = post
        self._posted_at = 0.0

    def perform(self, question: str) -> Any:
        """Run a script, and return all that the page shows of the run."""
        asked = msgspec.json.decode(question, type=PageQuestion)
        self._posted_at = performance.now()
        with put_away():
            done = Stage(asked.script, asked.aim, self._on_event).perform()
            return _write(answer_of(asked.script, done))

    def explain(self, question: str) -> Any:
        """Run a script until an event; return what each process says of its unfinished tasks, as [process, lines]."""
        asked = msgspec.json.decode(question, type=PageQuestion)
        with put_away():
            return _write(explained(asked))

    def call(self, answer: Callable[[str], bytes], question: str) -> Any:
        """Call a function that runs a simulation of its own, whose threads may be traced; return its answer."""
        with put_away(), steady_tracing():
            return to_js(answer(question))

    def _on_event(self, cluster: SimCluster) -> None:
        trace = cluster.trace
        if len(trace.events) % EVENTS_BETWEEN_LOOKS == 0 and performance.now() - self._posted_at > POST_MS:
            seconds = trace.events[-1].ticks / TICKS_PER_SECOND
            self._post(_write({"seconds": seconds, "page": page_data(trace, DRAWN_EVENTS)}))
            self._posted_at = performance.now()


def _write(answer: Any) -> Any:
    return to_js(msgspec.json.encode(answer))
