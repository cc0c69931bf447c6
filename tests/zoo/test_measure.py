"""Options that the command that measures the zoo refuses, before anything is planted."""

from __future__ import annotations

import pytest

from tests.zoo import measure
from tests.zoo.bugs import BUGS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonexistent"], "there is no bug called nonexistent; there are "),
        ([BUGS[0].name, "one", "two"], "there is no bug called one or two; there are "),
        (["--seeds", "-1"], "--seeds: at least one has to be tried, not -1"),
        (["--seeds", "0"], "not 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(measure, "search", lambda *_: pytest.fail("nothing may be looked for"))
    with pytest.raises(SystemExit) as refused:
        measure.main(arguments)
    said = capsys.readouterr().err
    assert refused.value.code == 2 and words in said
    assert "called" not in words or all(bug.name in said for bug in BUGS)


def test_known_bugs_are_measured_by_name() -> None:
    names = [bug.name for bug in BUGS[:2]]
    options = measure.options_of([*names, "--seeds", "5"])
    assert options.bugs == names and options.seeds == 5
