"""Hides from this process what only Unix has, so that a program runs as on a system without it (Windows).

    python -c "from tests import hidden; hidden.hide(); import minray; ..."

To be called in a process of its own, before minray is imported: ``run`` starts one. The libraries that minray uses, and the
parts of Python's library that read the names as they are imported, are imported first; they keep what they have found. From
then on ``import fcntl`` fails, and ``os.fork`` and the others are missing.

The names are those that the type checker's stubs do not have for ``sys.platform == "win32"``, but for constants that nobody
uses. ``sys.platform`` itself stays: Python's library would look for parts that this interpreter lacks. What Windows does in
another way, Python's library does here as it does there (``socket.socketpair``, ``shutil.disk_usage``).
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BEFOREHAND = (
    "asyncio", "concurrent.futures", "logging.handlers", "multiprocessing.shared_memory", "platform", "shutil", "sqlite3",
    "ssl", "tempfile", "zipfile", "cloudpickle", "msgspec", "numpy", "psutil",
)  # fmt: skip
"""Modules that are imported before anything is hidden."""
MODULES = (
    "_posixshmem", "_posixsubprocess", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios",
    "tty", "uvloop",
)  # fmt: skip
"""Modules that cannot be imported any more."""
NAMES = {
    "os": (
        "O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC O_TMPFILE WEXITSTATUS WIFEXITED"
        " WIFSIGNALED WNOHANG WTERMSIG WUNTRACED chown chroot confstr copy_file_range ctermid eventfd fchdir fchmod"
        " fchown fdatasync fork forkpty fpathconf fstatvfs fwalk getegid geteuid getgid getgrouplist getgroups"
        " getloadavg getpgid getpgrp getpriority getrandom getresgid getresuid getsid getuid getxattr initgroups"
        " killpg lchown listxattr lockf memfd_create mkfifo mknod nice openpty pathconf pidfd_open pipe2"
        " posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev readv register_at_fork"
        " removexattr sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid setgid setgroups"
        " setpgid setpriority setresgid setresuid setsid setuid setxattr splice statvfs sync sysconf tcgetpgrp"
        " tcsetpgrp ttyname uname wait wait3 wait4 waitid writev"
    ),
    "socket": (
        "AF_NETLINK AF_PACKET AF_UNIX CMSG_LEN CMSG_SPACE MSG_CMSG_CLOEXEC MSG_DONTWAIT MSG_NOSIGNAL"
        " SCM_CREDENTIALS SCM_RIGHTS SOCK_CLOEXEC SOCK_NONBLOCK SO_PASSCRED SO_PEERCRED SO_REUSEPORT recv_fds"
        " send_fds sethostname"
    ),
    "signal": (
        "ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGRTMAX SIGRTMIN SIGSTOP"
        " SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGWINCH SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm pause"
        " pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo"
    ),
    "mmap": "MADV_DONTNEED MADV_REMOVE MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
    "faulthandler": "register unregister",
    "time": "clock_gettime clock_gettime_ns pthread_getcpuclockid tzset",
    "asyncio": "open_unix_connection start_unix_server",
}
"""Names that their modules do not have any more. Some systems lack some of them."""


class Hider:
    """Finds, before all other finders, the modules that are not there; and fails as these would."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide() -> None:
    """Hide modules and names from code that is imported from now on."""
    assert "minray" not in sys.modules, "minray has seen this system already"
    for name in BEFOREHAND:
        importlib.import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hider())
    _replace_by_what_windows_does()
    for module_name, names in NAMES.items():
        module = importlib.import_module(module_name)
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def _replace_by_what_windows_does() -> None:
    statvfs, socketpair = os.statvfs, _pair_of_loopback

    def disk_usage(path: str) -> Any:
        system = statvfs(path)
        used, free = system.f_blocks - system.f_bfree, system.f_bavail
        return shutil._ntuple_diskusage(*(system.f_frsize * blocks for blocks in (system.f_blocks, used, free)))

    shutil.disk_usage = disk_usage
    shutil._use_fd_functions = False
    socket.socketpair = socketpair


def _pair_of_loopback(*_: int) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, as ``socket.socketpair`` makes them on Windows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _address = listener.accept()
    return one, other


def run(program: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program, with everything hidden, in a process of its own; return its output."""
    source = "from tests import hidden\nhidden.hide()\n" + textwrap.dedent(program)
    words = [sys.executable, "-c", source, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
