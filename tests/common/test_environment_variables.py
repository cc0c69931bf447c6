"""Variables that refer to others."""

from __future__ import annotations

import pytest

from minray.common.environment_variables import update_environment


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ("${PATH}:/opt/bin", "/bin:/opt/bin"),
        ("/opt/bin:$PATH", "/opt/bin:/bin"),
        ("a${NOWHERE}b", "ab"),
        ("pa$word", "pa$word"),
        ("${PATH", "${PATH"),
        ("$", "$"),
        ("${EVIL}", "${PATH}"),
    ],
)
def test_a_variable_may_refer_to_what_is_there(value: str, becomes: str) -> None:
    environ = {"PATH": "/bin", "EVIL": "${PATH}"}
    update_environment(environ, {"NEW": value})
    assert environ == {"PATH": "/bin", "EVIL": "${PATH}", "NEW": becomes}


def test_a_variable_may_refer_to_itself_and_to_those_before_it() -> None:
    environ = {"PATH": "/bin"}
    update_environment(environ, {"ROOT": "/opt", "PATH": "${PATH}:${ROOT}/bin", "EARLY": "${LATE}", "LATE": "late"})
    assert environ == {"ROOT": "/opt", "PATH": "/bin:/opt/bin", "EARLY": "", "LATE": "late"}
