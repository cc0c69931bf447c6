"""minray in Ray's place, for programs that say ``import ray``: ``python -m minray.run_as_ray program.py``.

Ray: has no counterpart; the names of python/ray/ lead here

The folder ``in_rays_place`` contains a package ``ray``, which is minray under that name. A Python with the folder at the
head of its ``sys.path`` imports that package. ``PYTHONPATH`` puts the folder there for the program and the processes that it
starts. The job's workers get it because they take over their driver's ``sys.path``. An installed Ray is hidden, not changed.

In a program, or an interactive session, ``with minray_as_ray(): ...`` does this until the block ends.

A module of Ray that minray does not have cannot be imported, unless the program pretends to have it
(``minray/in_rays_place/pretended.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import minray
from minray.in_rays_place import finder, pretended

FOLDER = str(Path(__file__).parent / "in_rays_place")
MODULE = "minray.run_as_ray"
USAGE = """usage: python -m minray.run_as_ray [--pretend MODULES] PROGRAM [ARGUMENTS ...]
       python -m minray.run_as_ray [--pretend MODULES] -m MODULE [ARGUMENTS ...]

Runs a Python program in which `import ray` means minray, in its workers too.

  --pretend MODULES  modules of Ray that minray does not have, joined by commas (ray.data,ray.train): names can be
                     imported from them, and raise an error when they are called"""


def split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules that ``--pretend`` names at the head of these arguments, and the rest of the arguments."""
    modules: list[str] = []
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] == "--pretend":
        option, is_joined, value = rest.pop(0).partition("=")
        modules += (value if is_joined else rest.pop(0) if rest else "").split(",")
    return modules, rest


def command(orig_argv: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Return the Python arguments that run the program itself, with the interpreter options of this process.

    ``orig_argv`` and ``argv`` are those of ``sys``: all arguments of this process, and the last ones of these.
    """
    options = list(orig_argv[1 : len(orig_argv) - len(argv) + 1])
    if options.pop() == MODULE:
        flags = options.pop().removesuffix("m")
        options += [flags] if flags != "-" else []
    return [*options, *split_options(argv[1:])[1]]


def environment(current: Mapping[str, str], pretend: Sequence[str] = ()) -> dict[str, str]:
    """Return a copy of the environment in whose Python processes ``import ray`` means minray.

    ``pretend`` names modules of Ray that can be imported there although minray does not have them.
    """
    path = os.pathsep.join(filter(None, [FOLDER, *pretended.path_entries(pretend), current.get("PYTHONPATH")]))
    return {**current, "PYTHONPATH": path}


@contextmanager
def minray_as_ray(pretend: Sequence[str] = ()) -> Iterator[None]:
    """Make ``import ray`` mean minray until the block ends, here and in the workers of a connection made inside it.

    ``pretend`` names modules of Ray that can be imported although minray does not have them. Raises RuntimeError if the
    real Ray has been imported already, or if this process is connected to a cluster.
    """
    if sys.modules.get("ray") is minray:
        yield
        return
    if "ray" in sys.modules:
        raise RuntimeError(f"{sys.modules['ray']} is imported already; enter minray_as_ray() before `import ray`")
    if minray.is_initialized():
        raise RuntimeError(
            "this process is connected already, and workers take over the sys.path with which their driver connects; "
            "enter minray_as_ray() before init()"
        )
    entries = [FOLDER, *pretended.path_entries(pretend)]
    sys.path[:0] = entries
    try:
        yield
    finally:
        for entry in entries:
            sys.path.remove(entry)
        finder.uninstall()


def main() -> None:
    """Replace this process by the program, with minray in Ray's place."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        raise SystemExit(0 if len(sys.argv) > 1 else 2)
    if sys.flags.ignore_environment:
        raise SystemExit("run_as_ray needs PYTHONPATH, but Python's options -E and -I ignore it; leave them out")
    pretend, program = split_options(sys.argv[1:])
    if not program:
        print(f"run_as_ray needs a program after its options\n{USAGE}", file=sys.stderr)
        raise SystemExit(2)
    try:
        environ = environment(os.environ, pretend)
    except ValueError as error:
        raise SystemExit(f"run_as_ray: --pretend: {error}") from None
    os.execve(sys.executable, [sys.executable, *command(sys.orig_argv, sys.argv)], environ)


if __name__ == "__main__":
    main()
