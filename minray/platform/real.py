"""The real side of the seam, put together: the one place where a ``Platform`` of real parts is made.

Ray: has no counterpart

Parts that differ between processes are passed in: name, identity, children and user code. The other parts are the same for
all processes of a cluster: the transport with its token, storage, memory, disks and the host.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import TYPE_CHECKING

from minray.common.config import SystemConfig
from minray.platform.base import CHUNK_BYTES, Disk, Host, Network, Platform, Processes
from minray.platform.storage.copier import Copier
from minray.platform.storage.disk import RealDisk
from minray.platform.storage.external_storage import ExternalDisk, is_external
from minray.platform.storage.memory import RealMemory
from minray.platform.storage.storage import open_storage
from minray.platform.threads.user_code import DriverUserCode, IoThread
from minray.platform.transport.lanes import Lane
from minray.platform.transport.sockets import StreamNetwork
from minray.platform.transport.stream_connection import MAX_TRANSFER_BYTES

if TYPE_CHECKING:
    from minray.platform.threads.main_thread import MainThreadUserCode  # which only workers have
    from minray.platform.transport.tls import Tls


def make_platform(
    name: str,
    identity: bytes,
    system_config: SystemConfig,
    token: bytes,
    processes: Processes,
    user_code: DriverUserCode | MainThreadUserCode,
    host: Host,
    lanes: int = 0,
    exchanges: bool = False,
) -> Platform:
    """Make the ``Platform`` of a real process.

    ``lanes`` is the number of networks for objects in bulk; only raylets need any, and gRPC has none. gRPC is imported only
    where it is used, because it does not survive a fork. With ``exchanges``, it sends the requests of each channel in one
    stream.
    """
    user_code.spinner.allow(system_config.busy_wait_microseconds / 1e6, host.cpu_count)
    tls = [_make_tls(system_config) for _ in range(lanes + 1)]  # one for each thread
    network, bulk = _make_network(token, host, system_config, tls[0], exchanges=exchanges), list[Lane]()
    if isinstance(network, StreamNetwork):
        user_code.outbox = network.outbox
        bulk = [
            Lane(StreamNetwork(token, host, tls=own, write_bytes=CHUNK_BYTES), f"minray-lane-{number}")
            for number, own in enumerate(tls[1:])
        ]

    def open_disk(path: str) -> Disk:
        external = is_external(path)
        disk: Disk = ExternalDisk(path) if external else RealDisk(path, system_config.local_fs_capacity_threshold)
        if not system_config.object_spilling_compression:
            return disk
        from minray.platform.storage.compressed_disk import CompressedDisk  # few nodes compress

        return CompressedDisk(disk)

    memory = RealMemory(system_config.arena, Copier(system_config.copy_threads, host.cpu_count))
    return Platform(
        name=name,
        identity=identity,
        network=network,
        processes=processes,
        user_code=user_code,
        host=host,
        open_storage=open_storage,
        memory=memory,
        open_disk=open_disk,
        bulk=bulk,
    )


def check_transport(system_config: SystemConfig) -> None:
    """Raise RuntimeError, with what to do, if the cluster's transport needs a package that is not installed here, or files
    for TLS that cannot be used."""
    if _names_files(system_config):
        from minray.platform.transport.tls import check_config

        check_config(system_config)
    if system_config.transport == "grpc":
        from importlib.util import find_spec

        if find_spec("grpc") is None:
            raise RuntimeError(
                'transport="grpc" needs grpcio, which is not installed here: pip install \'minray[grpc]\''
            )


def io_thread(system_config: SystemConfig) -> IoThread:
    """Return a thread with a loop, for one connection to a cluster; the caller stops it.

    gRPC binds every loop to its one queue of the process and never releases it. So with gRPC all callers share one thread.
    Raises RuntimeError without the transport's package, and in a process that was forked from one that has used gRPC.
    """
    check_transport(system_config)
    if system_config.transport != "grpc":
        return IoThread()
    from minray.platform.transport import grpc_transport

    grpc_transport.check_not_forked()
    return _lasting_thread()


@lru_cache(maxsize=1)
def _lasting_thread() -> IoThread:
    return IoThread(is_lasting=True)


def _end_lasting_thread() -> None:
    """End the thread before the interpreter ends, whose memory its loop would still use: a signal 11 in some exits.

    The loop stays open, because gRPC reports to it until the end.
    """
    if _lasting_thread.cache_info().currsize:
        _lasting_thread().join()


atexit.register(_end_lasting_thread)  # when this file is loaded: so it is called after what leaves the cluster


def client_network(token: bytes, host: Host, system_config: SystemConfig, max_transfer_bytes: int) -> Network:
    """Return the network between remote clients and client servers: both sides come here for it.

    ``system_config`` names the transport and the files for TLS of this side. Streams refuse a message that announces more
    than ``max_transfer_bytes`` of buffers, so that a broken peer cannot demand much memory.
    """
    return _make_network(token, host, system_config, _make_tls(system_config), max_transfer_bytes, exchanges=True)


def _make_tls(system_config: SystemConfig) -> Tls | None:
    """Make the contexts of one network; None without TLS, whose file is imported only where it is used."""
    if not _names_files(system_config):
        return None
    from minray.platform.transport.tls import Tls, files_of

    files = files_of(system_config)
    return None if files is None else Tls(files)


def _names_files(system_config: SystemConfig) -> bool:
    return bool(system_config.tls_cert or system_config.tls_key or system_config.tls_ca)


def _make_network(
    token: bytes,
    host: Host,
    system_config: SystemConfig,
    tls: Tls | None,
    max_transfer_bytes: int = MAX_TRANSFER_BYTES,
    *,
    exchanges: bool = False,
) -> Network:
    """Make the network that the configuration asks for; gRPC is imported only where it is used."""
    if system_config.transport != "grpc":
        return StreamNetwork(token, host, tls=tls, max_transfer_bytes=max_transfer_bytes)
    from minray.platform.transport.grpc_transport import GrpcNetwork

    return GrpcNetwork(token, host, tls=tls, exchanges=exchanges)
