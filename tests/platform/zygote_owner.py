"""An owner of a zygote, to be killed by tests: ``python zygote_owner.py SESSION_DIR MODE`` prints the pids of all as JSON.

Modes: ``holds`` waits; ``forks`` leaves a forked copy of itself that waits, with every descriptor open; ``detaches`` ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from minray.platform.process.processes import start_zygote

ROLES = str(Path(__file__).with_name("zygote_roles.py"))


def main() -> None:
    session_dir, mode = sys.argv[1:]
    zygote = start_zygote([ROLES], session_dir)
    essential = zygote.spawn("holds", "essential", b"", essential=True, ready=True)
    zygote.wait_ready(essential, 10)
    family = json.loads(zygote.wait_ready(zygote.spawn("has_subprocesses", "family", b"", ready=True), 10))
    copy = []
    if mode == "forks":
        copy = [os.fork()]
        if copy[0] == 0:
            signal.pause()
    if mode == "detaches":
        zygote.detach()
    print(json.dumps({"owner": os.getpid(), "zygote": zygote.pid, "essential": essential, "family": family, "copy": copy}))
    sys.stdout.flush()
    if mode != "detaches":
        signal.pause()


if __name__ == "__main__":
    main()
