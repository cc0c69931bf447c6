"""The page in Firefox: twenty runs are those of this Python, by the hashes that the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from minray.simulation.script import Script, Stage
from tests.firefox import NAMED, Firefox, path_of_firefox
from tests.helpers import wait_for_condition
from tests.playground.test_same_runs import RUNS

PATH = path_of_firefox()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PATH is None, reason=f"no Firefox: apt-get install firefox-esr, or set {NAMED}"),
]
WAIT_S = 120
"""Seconds in which Python has loaded, and in which a run ends, on a busy machine."""
SET_AND_RUN = """
const [source, seed, nodes, faults] = arguments, of = (id) => document.getElementById(id);
of("source").value = source;
of("seed").value = seed;
of("nodes").value = nodes;
for (const box of document.querySelectorAll("#kinds input")) box.checked = faults.includes(box.value);
of("source").dispatchEvent(new Event("input"));
of("digest").textContent = "";
of("seed").min = -1000;
of("run").click();
"""


def shown_digest(firefox: Firefox, script: Script) -> str:
    """Run a script on the page; return the hash that it shows."""
    firefox.run(SET_AND_RUN, script.source, script.seed, script.nodes, list(script.faults))
    read = 'return document.getElementById("digest").textContent'
    wait_for_condition(lambda: firefox.run(read), WAIT_S, f"no end of {script}")
    return str(firefox.run(read))


def test_twenty_runs_are_those_of_this_python(url: str, tmp_path: Path) -> None:
    assert PATH is not None
    with Firefox(PATH, tmp_path) as firefox:
        firefox.command("WebDriver:Navigate", url=f"{url}/index.html")
        state = 'return document.getElementById("state").textContent'
        wait_for_condition(lambda: "Ready" in firefox.run(state), WAIT_S, "Python has not loaded")
        differ = [script for script in RUNS if shown_digest(firefox, script) != Stage(script).perform().digest]
    assert differ == []
