"""Copies values into an arena, large ones with several threads.

Ray: src/ray/object_manager/plasma/client.cc (WriteObject with memcopy threads)

Most of a first copy is not copying: the kernel finds and clears each page when it is touched. One thread reaches neither
what the memory can do nor what the kernel can. numpy lets other threads run while it copies.

Rules
  * A part has at least ``PART_BYTES``, so that starting a thread is a small part of its work.
  * Only cores that nothing else wants are used, and at most half of the machine. Two cores copy with one thread.
  * A copy that is interrupted ends first: nothing is written into the arena after ``copy``.
"""

from __future__ import annotations

import threading

from minray.platform.base import Buffer
from minray.platform.process.host import runnable_threads

PART_BYTES = 16 * 1024 * 1024
"""Least bytes for one thread: several milliseconds of work, where starting a thread takes a tenth of one."""
MOST_THREADS = 8
"""Most threads for one copy. Fewer than these fill the memory channels of the machines that we know."""
PAGE_BYTES = 4096


class Copier:
    """Copies values for one process; any thread may ask."""

    def __init__(self, threads: int = 0, cores: int = 1) -> None:
        """Use this number of threads for large values (0: as many as cores are free, of the machine's ``cores``)."""
        self._threads = threads
        self._cores = cores

    def copy(self, target: memoryview, source: Buffer) -> None:
        """Copy all bytes of ``source`` to ``target``, which has as many."""
        parts = target.nbytes // PART_BYTES
        if parts > 1:
            parts = min(parts, self._threads or self._free())
        copy_in_parts(target, source, parts)

    def _free(self) -> int:
        """Return how many threads may copy now, the calling one included."""
        most = min(self._cores // 2, MOST_THREADS)
        if most < 2:
            return 1
        running = runnable_threads()
        return max(1, min(most, self._cores - running + 1)) if running else 1


def copy_in_parts(target: memoryview, source: Buffer, parts: int = 1) -> None:
    """Copy with as many threads as ``parts``, the calling one included, or with those that the system allows."""
    try:
        import numpy as np  # Imported here, so that a driver without large values does not wait for it.
    except ImportError:  # in a browser, which has one thread
        target.cast("B")[:] = memoryview(source).cast("B")
        return
    to, origin = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    if parts < 2:
        np.copyto(to, origin)
        return
    size = -(-len(to) // parts) + PAGE_BYTES - 1
    size -= size % PAGE_BYTES
    begun: list[threading.Thread] = []
    own = [(to[:size], origin[:size])]
    try:
        for start in range(size, len(to), size):
            piece = to[start : start + size], origin[start : start + size]
            thread = threading.Thread(target=np.copyto, args=piece, name="minray-copy", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                own.append(piece)
            else:
                begun.append(thread)
        for piece in own:
            np.copyto(*piece)
    finally:
        _join(begun)


def _join(threads: list[threading.Thread]) -> None:
    """Wait for all threads; then raise the last interrupt that came meanwhile."""
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
