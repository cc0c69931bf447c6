"""Writes a simulated run as one HTML page: lanes, messages, faults, and the state tables at any moment.

Ray: has no counterpart.

    write_page(cluster.trace, "run.html", headline(7, 3, "{'sum': 1141}", cluster.trace))

Rules
  * The page is one file: it contains style, script (``page.js``) and data. Its security policy forbids it to fetch
    anything.
  * The data is the trace itself, event by event, and the pairs of SEND and RECEIVE. The script derives all else, so that
    the page shows only what the trace says.
  * Output of user programs is data: it is escaped on its way into the page, and the script writes it as text only.
  * Time goes from left to right in the order of events. Two events of one tick are drawn side by side. A gap in which no
    shown event happens is folded, and marked with its length.

What we do not like yet: all events are drawn, whether visible or not, so that tens of thousands are slow.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from minray.protocol.core_worker import TASK_NAME_MARK
from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.trace import FAULT, LIFE, Event, Trace

SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
MAX_FAULTS_TOLD = 3
"""Number of faults that the headline describes in words."""
STALL = re.compile(r"stalls for ([\d.]+) s")
"""Matches the text of a stall in the trace, which ``faults`` writes."""
NODE_LOST = "node lost"
"""The trace's text of a lost node. It appears twice, for the process that was struck and for its machine: one fault."""
RANKS = {"gcs": 0, "raylet": 1, "driver": 2, "worker": 3}
"""The order of a node's lanes: role -> place."""


def write_page(trace: Trace, path: str | Path, head: str) -> None:
    """Write the page of a run; ``head`` is the sentence above it."""
    Path(path).write_text(page(trace, head), encoding="utf-8")


def headline(seed: int, nodes: int, outcome: str, trace: Trace) -> str:
    """Return a sentence that sums up a run: seed, nodes, outcome and faults."""
    struck: list[str] = []
    before: Event | None = None
    for event in trace.events:
        if event.kind == FAULT and not (before and event.details == before.details[:1] == (NODE_LOST,)):
            struck.append(f"{event.process}: {' '.join(event.details)}")
        before = event
    told = "; ".join(struck[:MAX_FAULTS_TOLD])
    more = f" and {len(struck) - MAX_FAULTS_TOLD} more" if len(struck) > MAX_FAULTS_TOLD else ""
    faults = f"{len(struck)} fault{'s' * (len(struck) > 1)} struck ({told}{more})" if struck else "no fault struck"
    return f"Seed {seed} on {nodes} node{'s' * (nodes > 1)}: the program ended with {outcome}; {faults}."


def page(trace: Trace, head: str) -> str:
    """Return the text of the page."""
    data = json.dumps(page_data(trace), ensure_ascii=True, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(head)}</title>\n<style>{STYLE}</style></head>\n"
        f'<body><h1>{html.escape(head)}</h1>{BODY}\n<script type="application/json" id="data">{data}</script>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def page_data(trace: Trace, most: int | None = None) -> dict[str, Any]:
    """Return the data for the script: all events, or the first ``most``.

    ``lanes``: [process, node]. ``events``: [ticks, lane, kind, details] of these events, in order. ``messages``: pairs of
    event numbers, SEND and RECEIVE. ``under_way``: numbers of the SENDs whose RECEIVE comes after these events. Any other
    SEND without a pair was lost. ``bars``: see ``bars_of``. ``task_mark``: the beginning of the lines in which a worker says
    for which task it prints.
    """
    count = len(trace.events[:most])
    nodes = trace.nodes()
    order = list(dict.fromkeys(nodes.values()))

    def rank(process: str) -> tuple[bool, int, int]:
        role = process.partition("/")[0]
        return role != "gcs", order.index(nodes[process]), RANKS.get(role, len(RANKS))

    lanes = sorted(nodes, key=rank)
    # Faults of a machine go to its first lane. The wire, which is neither process nor machine, has a lane of its own.
    homes = {node: next((process for process in lanes if nodes[process] == node and rank(process)[0]), "") for node in order}
    others = dict.fromkeys(event.process for event in trace.events if event.process not in {**nodes, **homes})
    lanes = [*others, *lanes]
    numbers = {process: number for number, process in enumerate(lanes)}
    numbers |= {node: numbers[process] for node, process in homes.items() if node not in numbers}
    return {
        "ticks_per_second": TICKS_PER_SECOND,
        "lanes": [[process, nodes.get(process, "")] for process in lanes],
        "events": [[event.ticks, numbers[event.process], event.kind, event.details] for event in trace.events[:count]],
        "messages": sorted([sent, received] for received, sent in trace.senders.items() if received < count),
        "under_way": sorted({sent for received, sent in trace.senders.items() if sent < count <= received}),
        "bars": [bar for bar in bars_of(trace) if bar[0] < count],
        "task_mark": TASK_NAME_MARK,
    }


def bars_of(trace: Trace) -> list[list[int]]:
    """Return the faults that last, as [number of the event, ticks until the end].

    A cut that only ``heal`` has ended has no bar.
    """
    bars = []
    for number, event in enumerate(trace.events):
        if event.kind != FAULT:
            continue
        if stall := STALL.fullmatch(event.details[0]):
            bars.append([number, int(float(stall[1]) * TICKS_PER_SECOND)])
        elif event.details[0].startswith("cut"):
            mended = ("mended", *event.details[1:])
            ends = (each.ticks for each in trace.events[number:] if each.kind == LIFE and each.details == mended)
            bars += [[number, ticks - event.ticks] for ticks in [next(ends, None)] if ticks is not None]
    return bars


BODY = """
<div id="controls">
  <button id="back" title="the event before (left arrow key)">&#9664;</button>
  <input id="slider" type="range" min="0" value="0" title="time: one step per event">
  <button id="forth" title="the next event (right arrow key)">&#9654;</button>
  <output id="now"></output>
  <span class="group">notable
    <button id="before" title="the fault, lost message, end of a process or log line before (P)">&#9664;</button><button
    id="after" title="the next fault, lost message, end of a process or log line (N)">&#9654;</button></span>
  <span class="group">zoom <button id="out">&minus;</button><button id="in">+</button><button id="fit">all</button></span>
  <details id="filter"><summary>shown</summary><div id="words"></div></details>
  <details id="help"><summary>how to read this</summary><p>Each line is a process; time goes to the right. An arrow is a
  message: solid for a request, dashed for its reply. A message that arrives
  twice has two arrows. A short red stub is a message that never arrived, a red cross a crash
  or a break, a red diamond a message that will be late, a striped bar a stall or a cut wire, a small black bar the end of a
  process. A dot is a change of state, a square a line of
  output. Grey bands are times in which nothing happens that is shown; they are folded. Below the lanes, a row per task,
  lease, worker and so on shows its states. The tables on the right are those of the moment under the blue line: move it
  with the slider, the arrow keys, or a click; N and P lead to the next and the previous fault, lost message, end of a
  process or line of a log. Point at anything to see what it is; Ctrl and the wheel zoom.</p></details>
</div>
<p id="caption"></p>
<main>
  <div id="scroll"><svg id="picture"></svg></div>
  <aside>
    <section><h2>around this moment</h2><ol id="around"></ol></section>
    <section><h2>states at this moment</h2><div id="tables"></div></section>
  </aside>
</main>
<div id="tip" hidden></div>
"""

STYLE = """
:root { color-scheme: light; --ink: #1c2430; --quiet: #6b7686; --line: #d5dbe3; --now: #1769e0 }
* { box-sizing: border-box }
body { margin: 0; height: 100vh; display: flex; flex-direction: column; background: #fff; color: var(--ink);
  font: 13px/1.4 system-ui, "Liberation Sans", sans-serif }
h1 { margin: 0; padding: 8px 14px 4px; font-size: 15px; font-weight: 600 }
h2 { margin: 12px 0 4px; font-size: 11px; font-weight: 600; color: var(--quiet); text-transform: uppercase }
#controls { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; padding: 4px 14px 8px;
  border-bottom: 1px solid var(--line) }
#slider { flex: 1 1 240px; accent-color: var(--now) }
#caption { margin: 0; padding: 4px 14px; overflow-wrap: anywhere; border-bottom: 1px solid var(--line); background: #f6f8fa }
#caption.fault { color: #a3141f; background: #fdeeee; font-weight: 600 }
button:disabled { opacity: .35 }
#now { min-width: 15em; font-variant-numeric: tabular-nums }
.group { color: var(--quiet) }
button { font: inherit; padding: 1px 9px; border: 1px solid var(--line); border-radius: 4px; background: #f6f8fa }
button:hover { background: #e8edf3 }
details { position: relative }
summary { cursor: pointer; color: var(--now) }
details > p, details > div { position: absolute; right: 0; z-index: 5; width: 25em; max-height: 70vh; overflow: auto;
  margin: 4px 0; padding: 10px 12px; border: 1px solid var(--line); border-radius: 6px; background: #fff;
  box-shadow: 0 4px 14px #0002 }
#words label { display: block; white-space: nowrap }
#words hr { border: 0; border-top: 1px solid var(--line) }
main { flex: 1; min-height: 0; display: flex }
#scroll { flex: 1; overflow: auto; cursor: crosshair }
aside { flex: 0 0 390px; overflow: auto; padding: 0 12px 12px; border-left: 1px solid var(--line) }
#around { margin: 0; padding: 0; list-style: none; font-size: 12px }
#around li { padding: 1px 6px; border-left: 3px solid transparent; cursor: pointer; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; color: var(--quiet) }
#around li:hover { background: #f1f4f8 }
#around li.here { border-color: var(--now); background: #eaf1fd; color: var(--ink); white-space: normal }
table { width: 100%; border-collapse: collapse; font-size: 12px }
td { padding: 1px 4px; border-bottom: 1px solid #eef1f5 }
td:nth-child(2) { color: var(--quiet) }
th { padding: 6px 4px 1px; text-align: left; font-weight: 600 }
tr.new td { background: #eaf1fd }
.chip { display: inline-block; padding: 0 6px; border-radius: 8px; font-size: 10.5px; white-space: nowrap }
@media (max-width: 1000px) {
  main { flex-direction: column }
  aside { flex: 0 0 34%; display: flex; gap: 12px; border-left: 0; border-top: 1px solid var(--line) }
  section { flex: 1; min-width: 0 }
}
#tip { position: fixed; z-index: 9; max-width: 30em; padding: 5px 9px; border-radius: 5px; background: #1c2430; color: #fff;
  font-size: 12px; pointer-events: none; white-space: pre-line; overflow-wrap: anywhere }
svg { display: block; font: 11px system-ui, "Liberation Sans", sans-serif }
svg text { fill: var(--ink) }
svg .lane, svg .table { font-weight: 600 }
svg .key { font-size: 10px }
svg .state { font-size: 9px }
svg .word { font-size: 9.5px; text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 3px }
svg .fault { fill: #d3202c; font-weight: 600; paint-order: stroke; stroke: #fff; stroke-width: 3px }
svg text.quiet, svg .axis text { fill: var(--quiet); font-size: 10px }
.life { stroke: #9aa6b5; stroke-width: 2 }
.unborn { stroke: #e4e8ee; stroke-width: 1 }
.death { stroke: var(--ink); stroke-width: 3 }
.message { fill: none; stroke-width: 1.3 }
.reply { stroke-dasharray: 4 3; stroke-opacity: .65 }
.lost { stroke: #d3202c; stroke-width: 2 }
.crash { stroke: #d3202c; stroke-width: 3; fill: none }
.fold { fill: #f0f2f5 }
.stall { fill: url(#stripes); stroke: #e07a00 }
.now { stroke: var(--now); stroke-width: 1.5 }
.hot { stroke-width: 3.5; stroke-opacity: 1 }
"""
