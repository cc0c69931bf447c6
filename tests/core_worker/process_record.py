"""The ``Process`` record that a part is made with in a test: a real record, whose peers write down what they are asked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from minray.common.config import WorkerConfig
from minray.core_worker.ground.process import Process
from minray.protocol.base import Address
from minray.rpc.connection import Peer, Peers
from minray.rpc.patient_caller import PatientCaller
from tests.core_worker.parts import OWN, config
from tests.core_worker.peers import RecordingPeers
from tests.platform_record import FakeHost, FakeProcesses, platform_record


def clock() -> float:
    """The time of the loop that runs."""
    return asyncio.get_running_loop().time()


def process_record(
    peers: RecordingPeers | None = None,
    *,
    address: Address = OWN,
    user_code: Any = None,
    processes: Any = None,
    **system: Any,
) -> Process:
    """Make the record of a process at an address; ``system`` overrides entries of the system configuration."""
    asked = peers or RecordingPeers()
    local = cast(Peer, asked.local)
    parts = {"user_code": user_code, "processes": processes or FakeProcesses(), "host": FakeHost()}
    return Process(
        platform=platform_record(identity=address.worker_id, **parts),
        config=WorkerConfig(
            worker_id=address.worker_id,
            node_id=address.node_id,
            node_ip="10.0.0.9",
            raylet_endpoint="sim:raylet",
            gcs_endpoint="sim:gcs",
            socket_dir="sim:node",
            tcp_host="",
            session_dir="",
            is_driver=False,
            system_config=config(**system),
        ),
        address=address,
        peers=cast(Peers, asked),
        gcs=local,
        raylet=local,
        patient=PatientCaller(cast(Peers, asked), local),
        now=clock,
    )
