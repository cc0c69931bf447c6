"""Grades one lab: ``python -m labs.grade 01-lease-manager``.

Ray: has no counterpart.

    python -m labs.grade LAB [--jobs N] [--page FILE] [--link FILE] [--results FILE] [--github FILE]

``--page`` is the story of the first failing scenario, and ``--link`` the address at which the playground runs it with the
student's code (``labs/permalink.py``). ``--results`` is Gradescope's format, which has the link, too. ``--github`` is a file
to which the output of a step of a workflow is appended.

Rules
  * The score goes to stdout, when it is known. What runs, and what is known before that, goes to stderr.
  * Files that were edited, removed or added come first: until they are as handed out there are no points.
  * Then the clauses of the contract are checked. Scenarios run only if all clauses hold, since a machine that breaks its
    contract breaks most scenarios, too, and a failing unit test says more.
  * Tests that a student has written are run on mutants instead (``labs/mutants.py``). Answers about pages are compared
    with the hashes of right ones (``labs/stories.py``).
"""

from __future__ import annotations

from pathlib import Path

import click

from labs import contract, manifest, mutants, scenarios, stories
from labs.lab import ROOT, SCENARIO_POINTS, Hole, Lab, NoSuchLab, Specification, Stories, load
from labs.score import Part, Score, Tell, silent

UNCHANGED = "the files as they were handed out"
MOST_CHANGES = 10
"""Number of edited files that a reason names."""


def grade(lab: Lab, root: Path, jobs: int = 1, page: Path | None = None, tell: Tell = silent) -> Score:
    """Return the score of the code below ``root``; ``tell`` hears what is done and known on the way."""
    notes = []
    if manifest.is_archive(root):
        notes = [f"digest of the manifest: {manifest.digest_of(root / manifest.NAME)}"]
        changes = manifest.changes(root)
        if changes:
            return Score(lab.name, _refused(lab, changes), notes)
    return Score(lab.name, _parts(lab, root, jobs, page, tell), notes)


def _parts(lab: Lab, root: Path, jobs: int, page: Path | None, tell: Tell) -> list[Part]:
    if isinstance(lab, Specification):
        return mutants.check(lab, root, tell)
    if isinstance(lab, Stories):
        return stories.check(lab, root)
    assert isinstance(lab, Hole)
    parts = contract.check(lab, root, tell)
    for part in parts:
        tell(part.line())
    if all(part.passed for part in parts):
        parts.append(scenarios.check(lab, root, jobs, page, tell))
    else:
        reason = f"not run: {len(lab.scenarios.seeds)} scenarios follow when all clauses hold"
        parts.append(Part(scenarios.NAME, SCENARIO_POINTS, False, reason))
    return parts


def _refused(lab: Lab, changes: list[str]) -> list[Part]:
    more = [f"and {len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    advice = f"restore them from the archive; write in {lab.file}, and tests of your own in {manifest.FOR_STUDENTS}"
    return [Part(UNCHANGED, 100, False, "\n".join([*changes[:MOST_CHANGES], *more, advice]))]


@click.command()
@click.argument("name", metavar="LAB")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of processes for scenarios.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write the story of a failing scenario.")
@click.option("--link", type=click.Path(dir_okay=False, path_type=Path), help="Write the playground's link to it.")
@click.option("--results", type=click.Path(dir_okay=False, path_type=Path), help="Write Gradescope's results.json.")
@click.option("--github", type=click.Path(dir_okay=False, path_type=Path), help="Append the output of a workflow's step.")
def main(name: str, jobs: int, page: Path | None, link: Path | None, results: Path | None, github: Path | None) -> None:
    """Grade one lab and print the score with its reasons; exit with 1 if it is not complete."""
    try:
        score = grade(load(name), ROOT, jobs, page, lambda line: click.echo(line, err=True))
    except (NoSuchLab, mutants.NoMutants, stories.NoStories) as error:
        raise click.UsageError(str(error)) from None
    click.echo(score.text())
    if link is not None:
        link.write_text("".join(f"{part.link}\n" for part in score.parts if part.link))
    if results is not None:
        results.write_text(score.gradescope())
    if github is not None:
        with github.open("a") as file:
            file.write(f"result={score.classroom()}\n")
    raise SystemExit(0 if score.points == score.most else 1)


if __name__ == "__main__":
    main()
