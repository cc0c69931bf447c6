"""Errors of commands: one line for people instead of a traceback.

Ray: python/ray/scripts/scripts.py raises click.ClickException in each command

Errors of other kinds than those below are bugs, and keep their tracebacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from minray.platform.base import PlatformError


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Turn the errors that a user can cause into one line, which click prints."""
    try:
        yield
    except TimeoutError:
        raise click.ClickException("the cluster does not answer in time") from None
    except (RuntimeError, ConnectionError, PlatformError, ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from None
