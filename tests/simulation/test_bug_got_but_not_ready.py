"""A value that ``get`` had just returned was not ready for a ``wait`` without time.

``get`` brought a large value from another node here, but only ``wait`` noted that it had come. So a ``wait`` with a time-out
of 0 began to fetch it once more, and gave up at once. A campaign with generators found this.
"""

from __future__ import annotations

import minray
from tests.simulation.judge import judged


@minray.remote(resources={"there": 1})
def make() -> bytes:
    return bytes(300_000)


def test_g8_what_was_got_is_ready() -> None:
    def body() -> bool:
        ref = make.remote()
        minray.get(ref)
        return minray.wait([ref], timeout=0) == ([ref], [])

    assert judged(body, nodes=[{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}])[0]
