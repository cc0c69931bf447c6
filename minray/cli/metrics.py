"""``minray metrics``: prints all metrics of a cluster, or serves them to Prometheus.

Ray: has no such command; each of its nodes has an HTTP port for Prometheus, without a token

    minray metrics                     the metrics of programs and of the system, in Prometheus's format
    minray metrics --serve 9090        the same at http://127.0.0.1:9090/metrics, until it is interrupted
    minray metrics --serve 9090 --tls-cert=node.crt --tls-key=node.key        at https://127.0.0.1:9090/metrics

Printing needs no library. Serving needs ``prometheus_client``, and the cluster's token in each request. The server is no
part of the cluster: it asks when it is asked, and a cluster that ends and comes back is found again.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import click

from minray.cli.state import Connect, ask, cluster_options
from minray.cli.tls import take_web_files
from minray.node.cluster_client import ClusterClient
from minray.observability.metric_families import Family
from minray.observability.prometheus_exposition import CONTENT_TYPE, MissingLibrary, check_library, exposition
from minray.observability.prometheus_text import text_of
from minray.observability.state_reader import StateReader
from minray.observability.system_metrics import collect, families_of
from minray.platform.base import PlatformError
from minray.platform.transport.metrics_http import PATH, MetricsServer, Page, plain
from minray.platform.transport.tls import is_reachable
from minray.platform.transport.web_tls import WebTls, web_files_of

LOOPBACK = "127.0.0.1"


def metrics_command(connect: Connect) -> click.Command:
    @click.command("metrics")
    @cluster_options
    @click.option("--serve", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve them; 0: any free port.")
    @click.option("--host", default=LOOPBACK, show_default=True, help="With --serve: address to listen at.")
    def command(address: str | None, token_file: str | None, timeout: float, port: int | None, host: str) -> None:
        """Print the metrics of programs (minray.util.metrics) and of the system, in Prometheus's text format."""
        if port is not None:
            _serve(connect, address, token_file, timeout, host, port)
            return
        figures = ask(connect, address, token_file, timeout, lambda reader: StateReader.figures(reader, timeout))
        click.echo(text_of(families_of(figures)), nl=False)
        for name in figures.silent:
            click.echo(f"{name} does not answer.", err=True)

    return command


def _serve(connect: Connect, address: str | None, token_file: str | None, timeout: float, host: str, port: int) -> None:
    try:
        check_library()
        own_files = take_web_files()
        pages = Pages(connect, address, token_file, timeout)
        client = pages.connect()
        files = own_files or web_files_of(client.own_config)
        server = MetricsServer(host, port, client.token, pages.page, None if files is None else WebTls(files))
    except (MissingLibrary, ConnectionError, PlatformError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen at {host}:{port}: {error.strerror}") from None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    shown = f"[{host}]" if ":" in host else host
    try:
        scheme = "http" if files is None else "https"
        click.echo(f"Metrics are at {scheme}://{shown}:{server.port}{PATH}, for requests with the cluster's token:")
        click.echo("    Authorization: Bearer TOKEN")
        if files is None and is_reachable(host):
            click.echo("Requests are not encrypted, and who reads one has the token: use only networks that you trust.")
        server.serve_forever()
    finally:
        server.server_close()
        pages.close()


def _leave(signal_number: int, frame: Any) -> None:
    sys.exit(0)


class Pages:
    """Makes the page for requests that may come at any time, in any thread: one collection at a time."""

    def __init__(self, connect: Connect, address: str | None, token_file: str | None, timeout: float) -> None:
        self._connect = connect
        self._address = address
        self._token_file = token_file
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: ClusterClient | None = None
        self._begun = 0
        """Number of collections that have begun."""
        self._made: tuple[int, Page] | None = None
        """The last page, and the number of its collection."""

    def page(self) -> Page:
        """Collect all metrics. A request that came before another one's collection began takes its page."""
        begun = self._begun
        with self._lock:
            if self._made is None or self._made[0] <= begun:
                self._begun += 1
                self._made = self._begun, self._collect()
            return self._made[1]

    def connect(self) -> ClusterClient:
        """Return the connection to the cluster. Raises what ``Connect`` does, and ConnectionError if none answers."""
        if self._client is None:
            client = self._connect(self._address, self._token_file)
            try:
                client.system_config()
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _collect(self) -> Page:
        try:
            families: list[Family] = self.connect().read(lambda reader: collect(reader, self._timeout))
        except (TimeoutError, ConnectionError, PlatformError, RuntimeError, ValueError) as error:
            self.close()  # The next request looks for the cluster anew: it may have come back elsewhere.
            return plain(503, f"the cluster does not answer: {error or 'the gcs was silent'}")
        return Page(200, CONTENT_TYPE, exposition(families))
