"""Attempts against a program and its cluster that fail for other users of the machine or network (docs/security.md)."""

from __future__ import annotations

import os

import pytest

from tests.platform.second_user import NOBODY, needs_second_user, second_user, shared_directory
from tests.real.support import run_driver

INIT_FAILS = """
try:
    ray.init(num_cpus=1, object_spilling_directory=sys.argv[1] or None)
except RuntimeError as error:
    print(error)
"""
LINKS = """
become()
os.symlink(sys.argv[2], sys.argv[1])
ready()
sys.stdin.read()
"""


@needs_second_user
def test_the_sessions_of_a_user_are_not_where_a_link_of_another_user_leads() -> None:
    with shared_directory() as shared:
        own = shared / "own"
        own.mkdir(mode=0o700)
        with second_user(LINKS, shared / f"minray-{os.geteuid()}", own):
            done = run_driver(INIT_FAILS, "", MINRAY_TMPDIR="", TMPDIR=str(shared), XDG_RUNTIME_DIR="")
        assert f"cannot use {shared}/minray-{os.geteuid()} for sessions: " in done.stdout and "is a link" in done.stdout
        assert os.listdir(own) == []


@needs_second_user
def test_a_user_whose_directory_is_taken_gets_one_in_the_login_s_directory() -> None:
    with shared_directory() as shared, shared_directory(0o700) as login:
        with second_user(LINKS, shared / f"minray-{os.geteuid()}", "/nowhere"):
            program = "print(ray.init(num_cpus=1)['session_dir']); ray.shutdown()"
            done = run_driver(program, MINRAY_TMPDIR="", TMPDIR=str(shared), XDG_RUNTIME_DIR=str(login))
        assert done.stdout.startswith(f"{login}/minray/session_"), done.stderr
        assert sorted(os.listdir(shared)) == [f"minray-{os.geteuid()}"], "objects were to be spilled there"


@needs_second_user
@pytest.mark.parametrize("whose", ["everybody's", "theirs"])
def test_objects_are_not_spilled_where_another_user_can_replace_them(whose: str) -> None:
    with shared_directory(0o777 if whose == "everybody's" else 0o755) as place:
        if whose == "theirs":
            os.chown(place, NOBODY, NOBODY)
        trouble = f"others may write to {place}" if whose == "everybody's" else f"{place} belongs to another user"
        done = run_driver(INIT_FAILS, str(place))
        assert f"cannot spill objects to {place}: {trouble}" in done.stdout, done.stderr
        assert os.listdir(place) == []


@pytest.mark.parametrize("name", ["MINRAY_TOKEN", "RAY_TOKEN"])
def test_no_process_of_a_cluster_inherits_a_token(name: str) -> None:
    program = """
    import os, psutil

    @ray.remote
    def names():
        return sorted(name for name in os.environ if "TOKEN" in name)

    context = ray.init(num_cpus=1)
    print(ray.get(names.remote()))
    own = psutil.Process()
    print([child.pid for child in own.children(recursive=True) if sys.argv[1] in child.environ().values()])
    """
    assert run_driver(program, "ab" * 32, **{name: "ab" * 32}).stdout == "[]\n[]\n"


def test_logs_rotate() -> None:
    program = """
    import os

    @ray.remote
    def say(count):
        for number in range(count):
            print(f"line {number}")

    limits = {"rotation_max_bytes": 1000, "rotation_backup_count": 2}
    context = ray.init(num_cpus=1, log_to_driver=False, _system_config=limits)
    ray.get(say.remote(2000))
    ray.shutdown()
    logs = os.path.join(context["session_dir"], "logs")
    sizes = {name: os.path.getsize(os.path.join(logs, name)) for name in os.listdir(logs)}
    assert max(sizes.values()) <= 1000, sizes
    (worker,) = {name.partition(".out")[0] for name in sizes if ".out" in name}
    assert sorted(name for name in sizes if ".out" in name) == [f"{worker}.out", f"{worker}.out.1", f"{worker}.out.2"], sizes
    print(open(os.path.join(logs, f"{worker}.out")).read().splitlines()[-1])
    """
    done = run_driver(program)
    assert done.stdout == "line 1999\n", done.stderr
