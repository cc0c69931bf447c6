"""The frames of the threads of this process: what each of them runs now.

Ray: python/ray/_private/profiling.py and ``ray stack``, which ask py-spy

Rule: nobody keeps the frames for longer than a look. A frame keeps the values of its variables alive.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType


def frames_of_other_threads() -> dict[int, FrameType]:
    """Return the innermost frame of every thread but the calling one, by the thread's ident.

    ``sys._current_frames`` also has the frame of its caller. A variable of the caller that holds that frame makes a cycle,
    which would keep all these frames, and the values and object references in them, until garbage is collected.
    """
    own = threading.get_ident()
    return {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
