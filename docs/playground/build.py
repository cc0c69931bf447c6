"""Assembles the playground's site: Pyodide, wheels, and the pages of this folder.

    python docs/playground/build.py build/playground

Ray: has no counterpart.

Rules
  * Nothing that is fetched is part of this repository. Pyodide comes from npm, wheels come from PyPI, both with the
    versions below; a second build takes them from the folder beside the site.
  * The site asks no other host for anything.
  * The story's lanes are those of ``minray.simulation.page``: its style and its script are written here as files, since the
    site's security policy allows no others.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
sys.path.insert(0, str(CHECKOUT))

from minray.simulation.page import BODY, SCRIPT, STYLE  # noqa: E402  (the checkout's)
from tests.zoo.bugs import BUGS  # noqa: E402
from tests.zoo.in_a_page import menu  # noqa: E402

SENTENCES = [CHECKOUT / "docs/zoo.md", CHECKOUT / "docs/specification.md"]
"""The pages with the sentences of the guarantees."""
OF_TESTS = ("zoo", "spec", "simulation")
"""Folders of tests with which the zoo's bugs are planted, run and judged."""
OF_ZOO = "tests/syntax.py"
"""Module by which the zoo finds functions."""
PYODIDE = "314.0.7"
"""Version of Pyodide: CPython 3.14."""
PARTS = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""What a browser loads of it."""
WHEELS = ("msgspec==0.22.0", "cloudpickle==3.1.3", "click==8.5.1")
PLATFORM = (
    "--platform=pyemscripten_2026_0_wasm32", "--python-version=3.14", "--implementation=cp", "--abi=cp314",
)  # fmt: skip
PAGES = ("index.html", "style.css", "story.css", "main.js", "worker.js", "cluster.js", "attempt.js", "faults.js", "icon.svg")
POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'"
STORY = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>The run</title>
<link rel="stylesheet" href="lanes.css"><link rel="stylesheet" href="story.css"></head>
<body>{BODY}<script type="application/json" id="data">{{}}</script></body></html>
"""
"""The page of a run without the run. The playground fills in the data, and then adds the script."""


def run(*command: str, cwd: Path = CHECKOUT) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def fetch_pyodide(fetched: Path) -> Path:
    """Return the folder with Pyodide; npm fetches it unless it is there."""
    folder = fetched / f"pyodide-{PYODIDE}"
    if not folder.exists():
        if shutil.which("npm") is None:
            raise SystemExit(f"npm is missing, which fetches pyodide {PYODIDE} for the playground: install Node.js")
        archive = run("npm", "pack", "--silent", f"pyodide@{PYODIDE}", cwd=fetched).split()[-1]
        with TemporaryDirectory(dir=fetched) as unpacked, tarfile.open(fetched / archive) as tar:
            tar.extractall(unpacked, filter="data")
            (Path(unpacked) / "package").rename(folder)
        (fetched / archive).unlink()
    return folder


def fetch_wheels(fetched: Path) -> list[Path]:
    """Return the wheels of the libraries that minray needs in a browser; pip fetches those that are not there."""
    folder = fetched / "wheels"
    if len(list(folder.glob("*.whl"))) != len(WHEELS):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run(*pip, "--only-binary=:all:", *PLATFORM, "--dest", str(folder), *WHEELS)
    return sorted(folder.glob("*.whl"))


def make_wheel(site: Path) -> Path:
    """Build minray's wheel from a copy of the checkout, which stays clean."""
    with TemporaryDirectory() as name:
        for path in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "_minray_pytestplugin.py"):
            shutil.copy(CHECKOUT / path, name)
        shutil.copytree(CHECKOUT / "minray", Path(name) / "minray", ignore=shutil.ignore_patterns("__pycache__"))
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run(*pip, "--no-build-isolation", "--wheel-dir", str(site), name)
    return next(site.glob("minray-*.whl"))


def programs() -> list[dict[str, str]]:
    """Return the programs of the menu, in the order of their files: name, title and text."""
    found = []
    for path in sorted((HERE / "programs").glob("*.py")):
        name = path.stem.partition("_")[2]
        found.append({"name": name, "title": name.replace("_", " ").capitalize(), "source": path.read_text()})
    return found


def pack_zoo(archive: Path) -> None:
    """Pack what plants, runs and judges the zoo's bugs; a page loads it when it is asked for a bug."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for folder in OF_TESTS:
            for path in sorted((CHECKOUT / "tests" / folder).glob("*.py")):
                if not path.name.startswith("test_"):
                    zipped.write(path, path.relative_to(CHECKOUT))
        zipped.write(CHECKOUT / OF_ZOO, OF_ZOO)
        for bug in BUGS:
            zipped.write(bug.witness, bug.witness.relative_to(CHECKOUT))


def build(site: Path) -> None:
    """Assemble the site in a folder, whose former content is removed."""
    fetched = site.parent / f"{site.name}-fetched"
    fetched.mkdir(parents=True, exist_ok=True)
    pyodide, wheels = fetch_pyodide(fetched), fetch_wheels(fetched)
    shutil.rmtree(site, ignore_errors=True)
    (site / "pyodide").mkdir(parents=True)
    for name in PARTS:
        shutil.copy(pyodide / name, site / "pyodide")
    for wheel in wheels:
        shutil.copy(wheel, site)
    for name in PAGES:
        shutil.copy(HERE / name, site)
    names = [*(wheel.name for wheel in wheels), make_wheel(site).name]
    (site / "site.json").write_text(json.dumps({"wheels": names, "programs": programs(), "bugs": menu(SENTENCES)}))
    pack_zoo(site / "zoo.zip")
    (site / "story.html").write_text(STORY)
    (site / "lanes.css").write_text(STYLE)
    (site / "story.js").write_text(SCRIPT)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
    print(Path(sys.argv[1]) / "index.html")
