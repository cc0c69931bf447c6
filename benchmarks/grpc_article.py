"""The document "Optimizing Distributed Futures over gRPC": latency, transfers, the microbenchmark, nodes, an application."""

from __future__ import annotations

from benchmarks import actors, application, latency, microbenchmark, start_and_stop, transfer
from benchmarks.document import DASK, MINRAY, RAY, Document, Part, Size, Table, Target

BOTH = (MINRAY, RAY)


def _seconds(full: float, quick: float) -> dict[Size, float]:
    return {Size.FULL: full, Size.QUICK: quick, Size.TINY: 4}


DOCUMENT = Document(
    "Optimizing Distributed Futures over gRPC",
    "Eric Liang, Edward Oakes and Stephanie Wang, 2020: Ray 0.8 on m4.16xlarge machines (AWS), one or more",
    parts=(
        Part(
            latency.NAME,
            (MINRAY, transfer.MINRAY_GRPC, RAY, DASK, transfer.GRPC, transfer.RAW_SOCKETS),
            latency.measure,
            _seconds(10, 4),
        ),
        Part(
            transfer.NAME,
            (MINRAY, transfer.MINRAY_GRPC, RAY, DASK, transfer.GRPC, transfer.RAW_SOCKETS),
            transfer.measure,
            _seconds(20, 5),
        ),
        Part(microbenchmark.NAME, BOTH, microbenchmark.measure, _seconds(120, 25)),
        Part(transfer.BY_NODES, (MINRAY, RAY, DASK), transfer.measure_by_nodes, _seconds(25, 8), is_quick=False),
        Part(application.NAME, BOTH, application.measure, _seconds(15, 5), is_quick=False),
        Part(start_and_stop.NAME, BOTH, start_and_stop.measure, _seconds(12, 8), is_quick=False),
        Part(actors.NAME, BOTH, actors.measure, _seconds(45, 10), is_quick=False),
    ),
    tables=(
        Table(
            latency.NAME,
            "A call of an actor, waited for",
            "us",
            original="A picture without numbers: Ray 0.8 has slightly lower latency than a server in gRPC's Python library.",
            targets={"": Target(transfer.GRPC, 1)},
        ),
        Table(
            transfer.NAME,
            "One object from node to node",
            "GB/s",
            more_is_better=True,
            original="More than 21 Gbit/s (2.6 GB/s) for 1 GiB between two machines; "
            "gRPC's Python library is slower than Ray.",
            original_rows={transfer.AS_IT_COMES: {None: 2.625}},
            targets={
                transfer.AS_IT_COMES: Target(RAY, 1),
                transfer.COLD: Target(RAY, 1),
                "": Target(transfer.RAW_SOCKETS, 0.8),
            },
        ),
        Table(
            microbenchmark.NAME,
            "Ray's microbenchmark",
            "/s",
            more_is_better=True,
            original="A picture without numbers: Ray 0.8 is faster than its predecessor, for the same 32 processors.",
            targets=microbenchmark.targets(),
        ),
        Table(
            transfer.BY_NODES,
            "Tasks by nodes, all of which share this machine",
            "tasks/s",
            more_is_better=True,
            axis="nodes",
            original="Nearly linear growth with the number of machines, to more than 200,000 tasks each second. "
            "Nodes that share two cores cannot grow; what can be seen is that more of them do not make a task dearer.",
        ),
        Table(
            application.NAME,
            "Evolution strategies (examples/evolution_strategies.py)",
            "s",
            original="RLlib trains on Atari games 10 to 40 % faster than with the Ray before.",
            targets={"": Target(RAY, 1)},
        ),
        Table(start_and_stop.NAME, "Starting and stopping", "s", targets=start_and_stop.TARGETS),
        Table(start_and_stop.MEMORY, "Memory of an idle cluster", "MB", targets=start_and_stop.MEMORY_TARGETS),
        Table(actors.NAME, "Making actors", "s", targets=actors.TARGETS),
        Table(actors.MEMORY, "Memory of an actor that does nothing", "MB"),
    ),
)
