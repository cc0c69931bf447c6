"""Files at the root that other tools read: the citation, the workflow, the forms for issues, the hooks of commits."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.test_tidy import ROOT

FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_has_what_cff_requires_and_repeats_no_version() -> None:
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"] and citation["title"] == "minray"
    assert citation["authors"] == [{"name": "The minray authors"}]
    assert "version" not in citation
    for reference in citation["references"]:
        assert reference.keys() >= {"type", "title", "authors"}


@pytest.mark.parametrize("name", ["setup.cfg", "CITATION.cff", "README.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_no_address_of_the_project_is_invented(name: str) -> None:
    invented = r"\S*[@/.](?:example|invalid|test|localhost)(?:\.(?:com|net|org))?\b\S*"
    addresses = [word for word in re.findall(invented, (ROOT / name).read_text()) if "://" in word or "@" in word]
    assert addresses == [], "the domain belongs to nobody"


def test_the_workflow_tests_every_python_that_setup_names() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = re.findall(r"Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.M)
    assert load(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named


def test_the_workflow_runs_nothing_but_make() -> None:
    jobs = load(".github/workflows/test.yml")["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands and all(command.startswith("make ") for command in commands)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_names_and_describes_each_field_once(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_hooks_run_targets_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    hooks = [hook for repository in load(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert hooks and all(hook["entry"].removeprefix("make ") in targets for hook in hooks)
