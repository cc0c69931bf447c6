"""The page of a run: one file, nothing from outside, a lane per process, an arrow per message, and the tables of the trace.

What the script makes of the data is looked at in a real browser, where there is one.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minray.simulation import FaultPlan, SimCluster
from minray.simulation.__main__ import simulate, single
from minray.simulation.cluster import DriverDied
from minray.simulation.faults import Key
from minray.simulation.page import SCRIPT, headline, page, page_data, write_page
from minray.simulation.trace import FAULT, LIFE, RECEIVE, SEND, STATE, Trace

NASTY = "</script><img src=x onerror=alert(1)><!--"
NODE = shutil.which("node")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def nasty() -> None:
    print(NASTY)


@pytest.fixture(scope="module")
def trace() -> Trace:
    cluster, outcome = simulate(7, 2, "none", show_output=False, driver=single)
    assert outcome == "42"
    return cluster.trace


def data_in(text: str) -> Any:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def tables_after(trace: Trace, number: int) -> set[tuple[str, str, str, str]]:
    """(process, table, key, state) after the event of this number; with a process go its tables."""
    states: dict[tuple[str, str, str], str] = {}
    for event in trace.events[: number + 1]:
        if event.kind == LIFE and event.details == ("ends",):
            states = {row: state for row, state in states.items() if row[0] != event.process}
        if event.kind == STATE:
            table, key, _, new = event.details
            states[event.process, table, key] = new
    return {(*row, state) for row, state in states.items() if state}


def test_it_is_one_file_that_asks_for_nothing(trace: Trace, tmp_path: Path) -> None:
    write_page(trace, tmp_path / "run.html", "A head.")
    text = (tmp_path / "run.html").read_text()
    assert "<h1>A head.</h1>" in text and "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)\s*=|@import|https?:|url\((?!#)|<link|<iframe", text)
    assert text.count("<script") == text.count("</script>") == 2


def test_the_data_is_the_trace(trace: Trace) -> None:
    data = data_in(page(trace, ""))
    lanes = [process for process, _ in data["lanes"]]
    assert sorted(lanes) == sorted(trace.nodes()) and lanes[0] == "gcs"
    assert dict(data["lanes"]) == trace.nodes()
    assert [(t, lanes[lane], kind, tuple(details)) for t, lane, kind, details in data["events"]] == [
        msgspec.structs.astuple(event) for event in trace.events
    ]


def test_every_receipt_belongs_to_the_sending_of_the_same_message(trace: Trace) -> None:
    pairs = data_in(page(trace, ""))["messages"]
    assert len({sent for sent, _ in pairs}) == len({received for _, received in pairs}) == len(pairs)
    assert {received for _, received in pairs} == {n for n, event in enumerate(trace.events) if event.kind == RECEIVE}
    for sent, received in pairs:
        there, here = trace.events[sent], trace.events[received]
        assert there.kind == SEND and there.details == (here.details[0], here.process)
        assert here.details[1] == there.process and there.ticks < here.ticks


def crashed(overrides: Mapping[Key, int]) -> Trace:
    with SimCluster([{"num_cpus": 1}] * 2, 7, overrides=overrides, show_output=False) as cluster:
        assert cluster.run(single) == 42
        cluster.settle()
    assert list(cluster.oracle.answers) == list(overrides)
    return cluster.trace


def is_repeated(trace: Trace, sent: int) -> bool:
    """Whether the message of this SEND arrives more than once."""
    return list(trace.senders.values()).count(sent) > 1


def place_of_the_task(trace: Trace) -> tuple[str, str]:
    """(link, worker) of the only task's PushTask."""
    (sent,) = (event for event in trace.events if event.kind == SEND and event.details[0] == "PushTask")
    return f"{sent.process}>{sent.details[1]}", sent.details[1]


def test_a_lost_message_has_no_pair_and_a_fault_is_told() -> None:
    link, worker = place_of_the_task(crashed({}))
    trace = crashed({("reset", link, "PushTask", 1): 1})
    pushed = [n for n, event in enumerate(trace.events) if event.details[:1] == ("PushTask",) and event.kind == SEND]
    data = page_data(trace)
    assert [n in {sent for sent, _ in data["messages"]} for n in pushed] == [False, True]
    assert headline(7, 2, "42", trace) == (
        "Seed 7 on 2 nodes: the program ended with 42; "
        f"1 fault struck (driver/0: reset of driver/0>{worker}: lost PushTask)."
    )


def test_faults_that_last_are_bars() -> None:
    _, worker = place_of_the_task(crashed({}))
    trace = crashed({("long_stall", worker, "user_code", 2): 1})
    ((number, ticks),) = page_data(trace)["bars"]
    assert trace.events[number].details[0] == "stalls for 1.0 s" and ticks == 1 << 20
    with SimCluster([{"num_cpus": 1}] * 2, 7, show_output=False) as cluster:
        cluster.world.wire.cut("head", "n1", 0.5)
        ends = cluster.processes["raylet/head"], cluster.processes["raylet/n1"]
        cluster.wait_until(lambda: not cluster.world.wire.is_cut(*ends))
    data = page_data(cluster.trace)
    ((number, ticks),) = data["bars"]
    assert ticks == 1 << 19 and data["events"][number][2:] == ["fault", ("cut", "head", "n1")]
    assert data["lanes"][data["events"][number][1]] == ["wire", ""]


def test_the_first_events_of_a_long_run_lose_no_message_that_arrives_later() -> None:
    _, worker = place_of_the_task(crashed({}))
    trace = crashed({("long_stall", worker, "user_code", 2): 1})
    whole = page_data(trace)
    received, sent = next((received, sent) for received, sent in trace.senders.items() if received > sent + 1)
    data = page_data(trace, received)
    assert data["events"] == whole["events"][:received] and sent in data["under_way"]
    assert data["messages"] == [pair for pair in whole["messages"] if pair[1] < received]
    ((stalled, _),) = whole["bars"]
    assert page_data(trace, stalled)["bars"] == [] and page_data(trace, stalled + 1)["bars"] == whole["bars"]
    assert whole["under_way"] == [] and page_data(trace, len(trace.events) + 1) == whole


def test_a_lost_machine_is_one_fault_in_the_lane_of_its_raylet() -> None:
    with SimCluster([{"num_cpus": 1}] * 2, 7, show_output=False) as cluster:
        cluster.world.lose_node("n1")
        cluster.settle()
    assert headline(7, 1, "None", cluster.trace) == (
        "Seed 7 on 1 node: the program ended with None; 1 fault struck (n1: node lost)."
    )
    data = page_data(cluster.trace)
    assert [data["lanes"][lane] for _, lane, kind, _ in data["events"] if kind == "fault"] == [["raylet/n1", "n1"]]
    strike = FaultPlan({"node_loss": 1.0}, budget=1, targets=("driver/",), spared_nodes=())
    with SimCluster([{"num_cpus": 1}] * 2, 7, strike, show_output=False) as cluster, pytest.raises(DriverDied):
        cluster.wait_for(cluster.start_driver(single, "driver/0", "n1"))
    assert "; 1 fault struck (driver/0: node lost before step" in headline(7, 2, "nothing", cluster.trace)


def test_what_a_program_prints_stays_text() -> None:
    with SimCluster([{"num_cpus": 1}], 7, show_output=False) as cluster:
        cluster.run(nasty)
    text = page(cluster.trace, NASTY)
    assert "</script><img" not in text and "<img" not in text
    assert f"<h1>{html.escape(NASTY)}</h1>" in text
    assert ["stdout", NASTY] in [details for *_, details in data_in(text)["events"]]


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_the_script_is_javascript() -> None:
    assert NODE is not None
    checked = subprocess.run([NODE, "--check", "-"], input=SCRIPT, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
class TestInABrowser:
    def dom(self, path: Path, fragment: str) -> str:
        assert BROWSER is not None
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent}", "--dump-dom"]
        command = [BROWSER, *options, f"{path.as_uri()}#{fragment}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    def test_the_picture_has_all_lanes_and_arrows_and_the_tables_of_the_moment(self, trace: Trace, tmp_path: Path) -> None:
        write_page(trace, tmp_path / "run.html", "A head.")
        moments = [n for n, event in enumerate(trace.events) if event.kind == STATE]
        for number in (moments[len(moments) // 2], moments[-1]):
            dom = self.dom(tmp_path / "run.html", f"all=1&event={number}")
            assert re.findall(r'class="lane"[^>]*>([^<]+)<', dom) == [process for process, _ in page_data(trace)["lanes"]]
            assert len(re.findall(r'class="message(?: reply)?"', dom)) == len(trace.senders)
            lost = len([event for event in trace.events if event.kind == SEND]) - len(trace.senders)
            assert dom.count('class="message lost"') == lost
            rows = {tuple(json.loads(html.unescape(row))) for row in re.findall(r'data-row="([^"]*)"', dom)}
            assert rows == tables_after(trace, number) != set()

    def test_a_message_that_arrives_twice_has_an_arrow_for_each_arrival(self, tmp_path: Path) -> None:
        trace = crashed({("duplicate", "driver/0>raylet/head", "RequestWorkerLease", 1): 1})
        first, again = sorted(number for number, sent in trace.senders.items() if is_repeated(trace, sent))
        assert trace.senders[first] == trace.senders[again]
        write_page(trace, tmp_path / "run.html", "A head.")
        dom = self.dom(tmp_path / "run.html", "all=1")
        assert len(re.findall(r'class="message(?: reply)?"', dom)) == len(trace.senders) > len(set(trace.senders.values()))
        ends = re.findall(r'class="message" d="M(\S+ \S+) L(\S+) \S+"', dom)
        starts = Counter(start for start, _ in ends)
        ((start, count),) = starts.most_common(1)
        assert count == 2 and len({end for each, end in ends if each == start}) == 2

    def test_a_message_under_way_at_the_last_event_is_neither_drawn_nor_lost(
        self, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        received, sent = next((received, sent) for received, sent in trace.senders.items() if received > sent + 1)
        monkeypatch.setattr("minray.simulation.page.page_data", partial(page_data, most=received))
        write_page(trace, tmp_path / "run.html", "A head.")
        dom = self.dom(tmp_path / "run.html", f"all=1&event={sent}")
        (caption,) = re.findall(r'<p id="caption"[^>]*>(.*?)</p>', dom)
        assert " sends " in caption and "never arrives" not in caption and 'class="message lost"' not in dom
        assert len(re.findall(r'class="message(?: reply)?"', dom)) == sum(each < received for each in trace.senders)

    def test_polls_are_hidden_unless_asked_for(self, trace: Trace, tmp_path: Path) -> None:
        write_page(trace, tmp_path / "run.html", "A head.")
        hidden = ("Poll", "CheckAlive", "ReportResources")
        told = [number for number in trace.senders.values() if not trace.events[number].details[0].startswith(hidden)]
        assert len(re.findall(r'class="message(?: reply)?"', self.dom(tmp_path / "run.html", ""))) == len(told) > 0

    def test_it_begins_with_the_first_fault_if_no_moment_is_asked_for(self, trace: Trace, tmp_path: Path) -> None:
        cluster, _ = simulate(13, 2, "swarm", show_output=False)
        events = cluster.trace.events
        first = next(number for number, event in enumerate(events) if event.kind == FAULT)
        write_page(cluster.trace, tmp_path / "run.html", "A head.")
        dom = self.dom(tmp_path / "run.html", "")
        assert re.findall(r'<p id="caption" class="(.*?)">FAULT, ([^:]*): ', dom) == [("fault", events[first].process)]
        assert f"event {first + 1} of {len(events)}</output>" in dom
        write_page(trace, tmp_path / "run.html", "A head.")
        assert f"event 1 of {len(trace.events)}</output>" in self.dom(tmp_path / "run.html", "")

    def test_a_program_cannot_break_out(self, tmp_path: Path) -> None:
        with SimCluster([{"num_cpus": 1}], 7, show_output=False) as cluster:
            cluster.run(nasty)
        write_page(cluster.trace, tmp_path / "run.html", NASTY)
        number = next(n for n, event in enumerate(cluster.trace.events) if event.details == ("stdout", NASTY))
        dom = self.dom(tmp_path / "run.html", f"event={number}")
        assert "<img" not in dom and f"driver/0 prints to stdout: {html.escape(NASTY, quote=False)}</li>" in dom
