"""The real side of the seam, put together: the one place where a ``Platform`` of real parts is made.

Ray: has no counterpart

What differs between processes (who they are, their children, the threads of their users) is passed in; the rest is the
same for all of one cluster: the transport with its token, storage, memory, disks, and the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from minray.common.config import SystemConfig
from minray.platform.base import CHUNK_BYTES, Disk, Host, Network, Platform, Processes
from minray.platform.compressed_disk import CompressedDisk
from minray.platform.disk import RealDisk
from minray.platform.external_storage import ExternalDisk, is_external
from minray.platform.lanes import Lane
from minray.platform.memory import RealMemory
from minray.platform.sockets import StreamNetwork
from minray.platform.storage import open_storage
from minray.platform.user_code import DriverUserCode, IoThread

if TYPE_CHECKING:
    from minray.platform.main_thread import MainThreadUserCode  # which only workers have


def make_platform(
    name: str,
    identity: bytes,
    system_config: SystemConfig,
    token: bytes,
    processes: Processes,
    user_code: DriverUserCode | MainThreadUserCode,
    host: Host,
    lanes: int = 0,
) -> Platform:
    """``lanes``: how many networks for bulk there are; only raylets need any, and gRPC has none.

    gRPC is imported only where it is used: it does not survive a fork.
    """
    user_code.spinner.allow(system_config.busy_wait_microseconds / 1e6, host.cpu_count)
    network: Network
    if system_config.transport == "grpc":
        from minray.platform.grpc_transport import GrpcNetwork

        network, bulk = GrpcNetwork(token, host), list[Lane]()
    else:
        network = StreamNetwork(token, host)
        user_code.outbox = network.outbox
        bulk = [
            Lane(StreamNetwork(token, host, write_bytes=CHUNK_BYTES), f"minray-lane-{number}") for number in range(lanes)
        ]

    def open_disk(path: str) -> Disk:
        external = is_external(path)
        disk: Disk = ExternalDisk(path) if external else RealDisk(path, system_config.local_fs_capacity_threshold)
        return CompressedDisk(disk) if system_config.object_spilling_compression else disk

    memory = RealMemory()
    return Platform(name, identity, network, processes, user_code, host, open_storage, memory, open_disk, bulk=bulk)


def check_transport(system_config: SystemConfig) -> None:
    """Raise RuntimeError, with what to do, if the cluster's transport needs a package that is not installed here."""
    if system_config.transport != "grpc":
        return
    from importlib.util import find_spec

    if find_spec("grpc") is None:
        raise RuntimeError("transport=\"grpc\" needs grpcio, which is not installed here: pip install 'minray[grpc]'")


def io_thread(system_config: SystemConfig) -> IoThread:
    """A thread for one user of a cluster, with a loop; whoever asks stops it.

    gRPC binds each loop that it meets to its one queue of the process and never lets go of it, so there is one loop for all.
    Raises RuntimeError without the transport's package, and in a process that was forked from one that has used gRPC.
    """
    check_transport(system_config)
    if system_config.transport != "grpc":
        return IoThread()
    from minray.platform import grpc_transport

    grpc_transport.check_not_forked()
    return _lasting_thread()


@lru_cache(maxsize=1)
def _lasting_thread() -> IoThread:
    return IoThread(is_lasting=True)
