"""Draw the pictures of the README: ``python docs/pictures/draw.py`` writes processes.svg and life_of_a_task.svg.

The life of a task is checked while it is drawn: each state must follow from the one before it in the tables of the
code, or ``draw`` raises. A test compares the committed files with what this script draws. The pictures bring their own
light ground, so they can be read on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from minray.core_worker.submission.task_manager import FINISHED, NEW, PUSHED, QUEUED, WAITING
from minray.core_worker.submission.task_manager import TRANSITIONS as TASK_STATES
from minray.raylet.worker_pool import IDLE, LEASED, STARTING, WORKER_STATES
from minray.scheduling import lease
from minray.scheduling.lease import ALLOCATED, GRANTED, LEASE_STATES

FOLDER = Path(__file__).parent
FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, QUIET, GROUND = "#1f2933", "#52606d", "#fbfbf8"
USER, RAYLET, GCS, MEMORY, ZYGOTE = "#dbeafe", "#dcfce7", "#fde7d3", "#ede9fe", "#eceff2"


class Picture:
    """An SVG file, drawn from back to front."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
            f" role='img' aria-label='{escape(title)}'>",
            f"<title>{escape(title)}</title>",
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7'"
            f" orient='auto-start-reverse'><path d='M0 0 L8 4 L0 8 z' fill='{INK}'/></marker></defs>",
        ]
        self.box(0.5, 0.5, width - 1, height - 1, GROUND, radius=10)

    def box(self, x: float, y: float, width: float, height: float, fill: str, radius: int = 6, dashed: bool = False) -> None:
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='{radius}' fill='{fill}'"
            f" stroke='#9aa5b1'{dash}/>"
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 13,
        anchor: str = "middle",
        bold: bool = False,
        color: str = INK,
        halo: str = GROUND,
    ) -> None:
        weight = " font-weight='bold'" if bold else f" stroke='{halo}' stroke-width='4' paint-order='stroke'"
        self.parts.append(
            f"<text x='{x}' y='{y}' {FONT} font-size='{size}' text-anchor='{anchor}' fill='{color}'{weight}>"
            f"{escape(words)}</text>"
        )

    def card(self, x: float, y: float, width: float, height: float, fill: str, name: str, *lines: str) -> None:
        """A box with a name and some quiet lines in it."""
        self.box(x, y, width, height, fill)
        self.text(x + width / 2, y + 20, name, bold=True)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + 38 + 15 * number, line, 12, color=QUIET, halo=fill)

    def line(self, points: Sequence[tuple[float, float]], both: bool = False, quiet: bool = False) -> None:
        """An arrow along some points."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        start = " marker-start='url(#tip)'" if both else ""
        dash = " stroke-dasharray='4 4'" if quiet else ""
        self.parts.append(
            f"<path d='{path}' fill='none' stroke='{INK}' stroke-width='1.4' marker-end='url(#tip)'{start}{dash}/>"
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def processes() -> str:
    """The processes of a cluster of two nodes."""
    picture = Picture(900, 470, "The processes of a minray cluster with two nodes")
    for x, name in ((20, "node 1 (head)"), (470, "node 2")):
        picture.box(x, 110, 410, 340, "#ffffff", radius=10, dashed=True)
        picture.text(x + 14, 440, name, anchor="start", color=QUIET)
    picture.card(330, 20, 240, 66, GCS, "gcs", "nodes, jobs, actors, functions;", "one per cluster, with stored tables")
    picture.card(40, 140, 160, 74, USER, "driver", "your program;", "owns what it creates")
    picture.card(260, 140, 150, 74, RAYLET, "raylet", "leases, scheduling,", "objects, spilling")
    picture.card(490, 140, 150, 74, RAYLET, "raylet", "leases, scheduling,", "objects, spilling")
    for x in (40, 120):
        picture.card(x, 280, 72, 60, USER, "worker", "runs tasks")
    for x in (710, 790):
        picture.card(x, 280, 72, 60, USER, "worker", "runs tasks")
    picture.card(260, 280, 150, 44, ZYGOTE, "zygote")
    picture.card(490, 280, 150, 44, ZYGOTE, "zygote")
    picture.card(40, 380, 370, 40, MEMORY, "object store: one arena of shared memory")
    picture.card(490, 380, 370, 40, MEMORY, "object store: one arena of shared memory")
    picture.line([(200, 165), (258, 165)])
    picture.text(229, 158, "leases", 12)
    picture.line([(100, 214), (100, 278)], both=True)
    picture.text(108, 250, "tasks, results", 12, "start")
    picture.line([(180, 214), (180, 234), (680, 234), (680, 264), (746, 264), (746, 278)], both=True)
    picture.text(560, 228, "tasks to leased workers, results back: no raylet between", 12)
    picture.line([(412, 190), (488, 190)], both=True)
    picture.text(450, 183, "chunks", 12)
    picture.line([(335, 138), (395, 88)], both=True)
    picture.line([(565, 138), (505, 88)], both=True)
    picture.line([(100, 138), (328, 60)], both=True)
    picture.text(165, 94, "actors, functions", 12)
    picture.text(650, 100, "who is alive, what is free", 12)
    for raylet, side in ((335, 194), (565, 708)):
        picture.line([(raylet, 214), (raylet, 278)], quiet=True)
        picture.line([(260 if side < 400 else 640, 302), (side, 302)], quiet=True)
    picture.text(227, 295, "forks", 12)
    picture.text(674, 295, "forks", 12)
    for x in (76, 156, 746, 826):
        picture.line([(x, 340), (x, 378)], both=True, quiet=True)
    picture.text(343, 258, "asks", 12, "start")
    picture.text(573, 258, "asks", 12, "start")
    picture.text(116, 364, "map", 12)
    picture.text(786, 364, "map", 12)
    return picture.svg()


def check(table: Mapping[str, Sequence[str]], states: Sequence[str]) -> None:
    """Raise if one of these states does not follow from the one before it."""
    for old, new in zip([NEW, *states], states, strict=False):
        if new not in table[old]:
            raise ValueError(f"{old or 'new'} -> {new} is no step of the table; correct the picture")


LIVES = (USER, 110), (USER, 330), (RAYLET, 560), (USER, 790)
"""The colour and the middle of the column of each thread or process of the second picture."""


def life_of_a_task() -> str:
    """One call from ``.remote()`` to ``get``, with the states of its task, its lease and its worker."""
    task = [WAITING, QUEUED, PUSHED, FINISHED]
    request = [lease.WAITING, lease.QUEUED, ALLOCATED, GRANTED]
    worker = [STARTING, IDLE, LEASED, IDLE]
    for table, states in ((TASK_STATES, task), (LEASE_STATES, request), (WORKER_STATES, worker)):
        check(table, states)
    picture = Picture(900, 560, "The life of a task: messages, and the states of the task, its lease and its worker")
    names = ("your thread", "owner (core worker)", "raylet", "leased worker")
    for (fill, x), name in zip(LIVES, names, strict=True):
        picture.parts.append(f"<path d='M{x} 52 L{x} 540' stroke='#9aa5b1'/>")
        picture.box(x - 88, 18, 176, 34, fill)
        picture.text(x, 40, name, bold=True)

    def message(start: int, end: int, y: int, words: str) -> None:
        (_, x), (_, goal) = LIVES[start], LIVES[end]
        edge = 6 if goal > x else -6
        picture.line([(x + edge, y), (goal - edge, y)])
        right = max(x, goal)
        middle = (x + goal) / 2 if abs(start - end) == 1 else (LIVES[2][1] + right) / 2
        picture.text(middle, y - 7, words, 12)

    def state(life: int, y: int, name: str) -> None:
        _, x = LIVES[life]
        width = 8 * len(name) + 20
        picture.box(x - width / 2, y - 12, width, 22, "#ffffff", radius=11)
        picture.text(x, y + 4, name, 11, bold=True)

    message(0, 1, 90, "f.remote(x)")
    state(1, 116, task[0])
    picture.text(330, 144, "wait for x; put it in if small", 12, color=QUIET)
    state(1, 166, task[1])
    message(1, 2, 196, "RequestWorkerLease")
    state(2, 222, request[0])
    state(2, 250, request[1])
    state(2, 278, request[2])
    state(3, 250, worker[1])
    state(2, 306, request[3])
    state(3, 306, worker[2])
    message(2, 1, 338, "LeaseReply")
    message(1, 3, 372, "PushTask")
    state(1, 398, task[2])
    picture.text(790, 398, "run f, in the main thread", 12, color=QUIET)
    message(3, 1, 430, "PushTaskReply: the value, or its place")
    state(1, 456, task[3])
    message(1, 0, 470, "get(y) returns")
    picture.text(340, 492, "more tasks with the same needs: PushTask at once", 12, color=QUIET)
    message(1, 2, 524, "ReturnWorkerLease")
    state(3, 524, worker[3])
    return picture.svg()


PICTURES = {"processes.svg": processes, "life_of_a_task.svg": life_of_a_task}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
