"""``minray microbenchmark``: Ray's rows on a cluster of its own."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main

LINE = re.compile(r"(.+) per second (\d+\.\d\d) \+- (\d+\.\d\d)")


def test_chosen_rows_are_measured_on_a_cluster_that_is_gone_afterwards() -> None:
    done = CliRunner().invoke(main, ["microbenchmark", "put calls", "1:1 actor calls sync", "--rounds=2", "--seconds=0"])
    assert done.exit_code == 0, done.output
    matches = [LINE.fullmatch(line) for line in done.output.splitlines() if not line.startswith("minray ")]
    assert all(matches), done.output
    rows = {match[1]: float(match[2]) for match in matches if match}
    assert list(rows) == ["single client put calls", "multi client put calls", "1:1 actor calls sync"]
    assert min(rows.values()) > 0
    assert not minray.is_initialized()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["no such row"], "no row has 'no such row' in its name"), (["--rounds=0"], "0 is not in the range x>=1")],
)
def test_what_makes_no_sense_is_said_at_once(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["microbenchmark", *arguments])
    assert done.exit_code != 0 and said in done.output
    assert not minray.is_initialized()
