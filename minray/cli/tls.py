"""The options of TLS, for every command that starts a node or connects to a cluster.

Ray: has no options for this, only RAY_USE_TLS and the variables beside it

The options are kept beside the command's own parameters, so that a command needs no parameters for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from minray.node.discovery import with_environment
from minray.platform.transport.web_tls import WebFiles

_META = "minray.cli.tls"
_HELP = {
    "tls_cert": "Certificate with which this process shows who it is (PEM). Default: $MINRAY_TLS_CERT, or no TLS.",
    "tls_key": "Key of that certificate, readable by its user alone. Default: $MINRAY_TLS_KEY.",
    "tls_ca": "Certificate of the CA that has signed those of all nodes. Default: $MINRAY_TLS_CA.",
}


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the three options. Their values are not passed to the command; ``given_tls`` returns them."""
    for name, text in reversed(_HELP.items()):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, metavar="FILE", help=text, expose_value=False, callback=_keep)(command)
    return command


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta.setdefault(_META, {})[param.name] = os.path.abspath(value)


def take_web_files() -> WebFiles | None:
    """Return the files that the options name for a port alone, without a CA; the cluster is then connected without them."""
    given = click.get_current_context().meta.get(_META, {})
    if given.keys() != {"tls_cert", "tls_key"} or with_environment(given).get("tls_ca"):
        return None
    return WebFiles(given.pop("tls_cert"), given.pop("tls_key"))


def given_tls() -> dict[str, Any]:
    """Return the entries of the system config that the options of the running command stand for."""
    ctx = click.get_current_context(silent=True)
    return {} if ctx is None else dict(ctx.meta.get(_META, {}))
