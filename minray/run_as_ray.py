"""minray in Ray's place, for programs that say ``import ray``: ``python -m minray.run_as_ray program.py``.

Ray: has no counterpart; the names of python/ray/ lead here

The folder ``in_rays_place`` has a package ``ray`` in it, which is minray under that name. Whatever has the folder at the
head of its path imports it: the program and the processes that it starts, through ``PYTHONPATH``, and its workers, since a
job's workers take over their driver's path. An installed Ray is hidden, not touched.

In a program, or an interactive session, ``with minray_as_ray(): ...`` does the same for as long as the block lasts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import minray

FOLDER = str(Path(__file__).parent / "in_rays_place")
MODULE = "minray.run_as_ray"
USAGE = """usage: python -m minray.run_as_ray PROGRAM [ARGUMENTS ...]
       python -m minray.run_as_ray -m MODULE [ARGUMENTS ...]

Runs a Python program in which `import ray` means minray, in its workers too."""


def command(orig_argv: Sequence[str], argv: Sequence[str]) -> list[str]:
    """The arguments of a Python that runs the program itself, with the options that this one was given.

    ``orig_argv`` and ``argv`` are those of ``sys``: all that this process was started with, and the end of it.
    """
    options = list(orig_argv[1 : len(orig_argv) - len(argv) + 1])
    if options.pop() == MODULE:
        flags = options.pop().removesuffix("m")
        options += [flags] if flags != "-" else []
    return [*options, *argv[1:]]


def environment(current: Mapping[str, str]) -> dict[str, str]:
    """The same with minray in Ray's place for every Python that is started with it."""
    path = os.pathsep.join(filter(None, [FOLDER, current.get("PYTHONPATH")]))
    return {**current, "PYTHONPATH": path}


@contextmanager
def minray_as_ray() -> Iterator[None]:
    """While the block lasts, ``import ray`` means minray here, and in the workers of a connection begun in it.

    Raises RuntimeError if the real Ray has been imported already, or if this process is connected to a cluster.
    """
    if sys.modules.get("ray") is minray:
        yield
        return
    if "ray" in sys.modules:
        raise RuntimeError(f"{sys.modules['ray']} is imported already; put minray in its place before that")
    if minray.is_initialized():
        raise RuntimeError("workers take over the path with which their driver connects; enter this before init()")
    finders = list(sys.meta_path)
    sys.path.insert(0, FOLDER)
    try:
        yield
    finally:
        sys.path.remove(FOLDER)
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder in finders]
        for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
            del sys.modules[name]


def main() -> None:
    """Become the program."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        raise SystemExit(0 if len(sys.argv) > 1 else 2)
    if sys.flags.ignore_environment:
        raise SystemExit("run_as_ray needs PYTHONPATH, which the options -E and -I of Python make it ignore; leave them out")
    os.execve(sys.executable, [sys.executable, *command(sys.orig_argv, sys.argv)], environment(os.environ))


if __name__ == "__main__":
    main()
