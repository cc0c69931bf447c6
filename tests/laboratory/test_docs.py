"""docs/laboratory.md: its commands run, its program prints what the page says, its tables name what there is."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray.cli.main import main
from minray.laboratory.cost_model import CostModel
from minray.laboratory.generator import Load
from minray.laboratory.setup import Machine, Setup, machines_in
from minray.laboratory.shapes import SHAPES

PAGE = (Path(__file__).parents[2] / "docs" / "laboratory.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert program == "minray" and result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"run.html", "load.json", "run.json", "tasks.csv", "compared.html"}


def test_the_program_prints_what_the_page_says() -> None:
    (program,) = blocks("python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert f"# {printed.getvalue()}" in program


def test_the_tables_name_all_settings_and_entries() -> None:
    told = set(re.findall(r"`([\w-]+)`", PAGE))
    entries = {*CostModel.__struct_fields__, *SHAPES, *Load.__struct_fields__, *Machine.__struct_fields__}
    assert entries - {"shape", "width", "depth"} <= told


def test_the_machines_of_the_page_can_be_used(tmp_path: Path) -> None:
    (machines,) = blocks("json")
    path = tmp_path / "machines.json"
    path.write_text(machines)
    fast, *_, slow = Setup(machines=machines_in(path)).each()
    assert (fast.speed, fast.has("memory"), slow.cpus, slow.store_bytes) == (2, 64e9, 4, 200_000_000)
