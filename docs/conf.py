"""How the documentation is built: Sphinx with MyST; warnings are errors (``make docs``).

The runs that the pages show are simulated while the documentation is built, so that they are never out of date: the life of
a task, and for each bug of the zoo that has a witness, the run with the bug and the run without.
"""

import os
import sys
from pathlib import Path

from sphinx.application import Sphinx

from minray.simulation.__main__ import simulate, single
from minray.simulation.page import headline, write_page

sys.path.insert(0, str(Path(__file__).parents[1]))
from docs.building import files, reference
from tests.zoo.bugs import BUGS
from tests.zoo.witness import write_pages

project = "minray"
author = "the authors of minray"
copyright = author  # the name that Sphinx gives this setting

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "colon_fence"]

html_theme = "furo"
html_title = "minray"
html_favicon = "playground/icon.svg"
pygments_dark_style = "monokai"
html_baseurl = os.environ.get("SITE_URL", "http://localhost:8000/")
"""Where the site is published, with a slash at its end; the sitemap and llms.txt have whole addresses."""
html_static_path = ["building/static"]
html_css_files = ["landing.css"]
html_js_files = [("landing.js", {"defer": "defer"})]
html_permalinks_icon = "#"

autodoc_default_options = {"members": True, "imported-members": True}
autodoc_member_order = "alphabetical"
python_maximum_signature_line_length = 100
"""Characters of a signature that stay in one line; a longer one has a line for each parameter."""
default_role = "code"  # in docstrings; pages are Markdown


def write_life_of_a_task(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        cluster, outcome = simulate(7, 2, "none", show_output=False, driver=single)
        path = Path(app.outdir) / "life_of_a_task_run.html"
        write_page(cluster.trace, path, headline(7, 2, outcome, cluster.trace))


def write_zoo(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.config.zoo_runs:
        folder = Path(app.outdir) / "zoo_runs"
        folder.mkdir(exist_ok=True)
        write_pages(folder, BUGS)


def setup(app: Sphinx) -> None:
    files.setup(app)
    reference.setup(app)
    app.add_config_value("zoo_runs", True, "", bool)  # False: leave out the runs of the zoo, which take minutes
    app.connect("build-finished", write_life_of_a_task)
    app.connect("build-finished", write_zoo)
