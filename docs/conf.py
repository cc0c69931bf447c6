"""How the documentation is built: Sphinx with MyST; warnings are errors (``make docs``).

The run on the page about the life of a task is simulated while the documentation is built, so that it is never out of date.
"""

from pathlib import Path

from sphinx.application import Sphinx

from minray.simulation.__main__ import simulate, single
from minray.simulation.page import headline, write_page

project = "minray"
author = "the authors of minray"
copyright = author  # the name that Sphinx gives this setting

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "minray"


def write_life_of_a_task(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        cluster, outcome = simulate(7, 2, "none", show_output=False, driver=single)
        path = Path(app.outdir) / "life_of_a_task_run.html"
        write_page(cluster.trace, path, headline(7, 2, outcome, cluster.trace))


def setup(app: Sphinx) -> None:
    app.connect("build-finished", write_life_of_a_task)
