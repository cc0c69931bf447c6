"""Ray's name for ``breakpoint()``: ``minray.util.pdb.set_trace()``.

Ray: python/ray/util/rpdb.py

In a worker the debugger waits for ``minray debug`` (``minray/node/debugger.py``), in a driver it uses the terminal.
"""

from __future__ import annotations

__all__ = ["set_trace"]

set_trace = breakpoint
"""Stop the calling thread at its next line."""
