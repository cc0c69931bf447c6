"""Peers that the libraries are compared with: a server of gRPC's Python library, and raw sockets, each in its own process.

python -m benchmarks.peers grpc                       prints its port, and serves until its standard input ends
python -m benchmarks.peers echo PATH                  answers each byte on a unix socket
python -m benchmarks.peers send PORT STREAMS BYTES    opens STREAMS connections, and sends BYTES whenever it is asked
"""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc

MEBIBYTE = 1 << 20
HOST = "127.0.0.1"
PAGE_BYTES = 4096
CALL, READ = "/benchmark/Call", "/benchmark/Read"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
THREADS = 10
"""Number of the server's threads, as in the example of gRPC's own documentation."""


def process(*words: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# --- gRPC


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A service whose requests and replies are plain bytes, so that no serialization is measured."""

    def service(self, details: Any) -> Any:
        if details.method == CALL:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"ok")
        return grpc.unary_stream_rpc_method_handler(self._read)

    def _read(self, request: bytes, context: Any) -> Iterator[bytes]:
        message = bytes(MEBIBYTE)
        for _ in range(int(request)):
            yield message


def serve_grpc() -> None:
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[Handlers()], options=OPTIONS)
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


class GrpcPeer:
    """A gRPC server process, and channels to it."""

    def __init__(self, streams: int = 1) -> None:
        self._server = process("grpc")
        assert self._server.stdout is not None
        port = int(self._server.stdout.readline())
        # Channels to the same address share a connection, unless they differ in an option.
        options = [[*OPTIONS, ("stream", number)] for number in range(streams)]
        self._channels = [grpc.insecure_channel(f"{HOST}:{port}", each) for each in options]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        self._server.communicate()

    def caller(self) -> Callable[[], Any]:
        call = self._channels[0].unary_unary(CALL)
        return lambda: call(b"x")

    def read(self, size: int) -> None:
        """Read ``size`` bytes from the server into warm memory, an equal share through each channel."""
        target = warm_memory(size)
        in_threads(self._read, self._channels, shares(target, len(self._channels)))

    def _read(self, channel: Any, target: memoryview) -> None:
        at = 0
        for message in channel.unary_stream(READ)(b"%d" % -(-len(target) // MEBIBYTE)):
            part = min(len(message), len(target) - at)
            target[at : at + part] = message[:part]
            at += part


# --- raw sockets


def echo(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        connection = server.accept()[0]
        while byte := connection.recv(1):
            connection.send(byte)


@contextmanager
def echoing() -> Iterator[Callable[[], Any]]:
    """Yield a call that sends a byte to another process and receives it back."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "socket"))
        answerer = process("echo", path)
        assert answerer.stdout is not None and answerer.stdout.readline()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)

            def call() -> bytes:
                connection.send(b"x")
                return connection.recv(1)

            yield call
        answerer.communicate()


def warm_memory(size: int) -> memoryview:
    """Return shared memory, as an arena is, whose pages have been written to before."""
    view = memoryview(mmap.mmap(-1, size))
    view[::PAGE_BYTES] = b"x" * len(view[::PAGE_BYTES])
    return view


def shares(view: memoryview, count: int) -> list[memoryview]:
    step = -(-len(view) // count)
    return [view[start : start + step] for start in range(0, len(view), step)]


def in_threads(function: Any, *arguments: Any) -> None:
    threads = [threading.Thread(target=function, args=pair) for pair in zip(*arguments, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_raw(port: int, streams: int, size: int) -> None:
    """Send memory through all connections whenever the receiver asks for it, until the connections end."""
    parts = shares(warm_memory(size), streams)
    connections = [socket.create_connection((HOST, port)) for _ in parts]
    while all(connection.recv(1) for connection in connections):
        in_threads(socket.socket.sendall, connections, parts)


def _receive(connection: socket.socket, into: memoryview) -> None:
    while into:
        into = into[connection.recv_into(into) :]


class RawSockets:
    """A process that sends, and connections through which this process receives."""

    def __init__(self, streams: int, size: int) -> None:
        self._size = size
        self._parts = shares(warm_memory(size), streams)

    def __enter__(self) -> Self:
        with socket.create_server((HOST, 0)) as server:
            self._sender = process("send", server.getsockname()[1], len(self._parts), self._size)
            self._connections = [server.accept()[0] for _ in self._parts]
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        self._sender.communicate()

    def transfer(self) -> float:
        """Receive all bytes once; return the seconds that it took."""
        begun = time.perf_counter()
        for connection in self._connections:
            connection.sendall(b"?")
        in_threads(_receive, self._connections, self._parts)
        return time.perf_counter() - begun


def main() -> None:
    match sys.argv[1:]:
        case ["grpc"]:
            serve_grpc()
        case ["echo", path]:
            echo(path)
        case ["send", *numbers]:
            send_raw(*map(int, numbers))


if __name__ == "__main__":
    main()
