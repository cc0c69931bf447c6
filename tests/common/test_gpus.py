"""Which GPUs a task is told, and which variable hides the others from its process."""

from __future__ import annotations

import pytest

from minray.common.gpus import HIP_VARIABLE, NodeGpus, ids_of, listed_ids, variables_of

CUDA = "CUDA_VISIBLE_DEVICES"
NEVER = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
ON_ZERO = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (None, None),
        ("", ()),
        ("NoDevFiles", ()),
        ("-1", ()),
        ("3", ("3",)),
        ("4, 5", ("4", "5")),
        ("4,-1,5", ("4",)),
        ("GPU-ef6e238c,MIG-1", ("GPU-ef6e238c", "MIG-1")),
    ],
)
def test_a_value_of_the_variable_names_devices(value: str | None, ids: tuple[str, ...] | None) -> None:
    assert listed_ids(value) == ids


@pytest.mark.parametrize(
    ("environ", "env_vars", "indices", "ids"),
    [
        ({}, {}, [], []),
        ({}, {}, [0, 2], [0, 2]),
        ({CUDA: "4,5"}, {}, [1], ["5"]),
        ({CUDA: "4,5"}, {"PATH": "/bin"}, [], []),
        ({CUDA: "4,5"}, {CUDA: "9,8"}, [0, 1], ["9", "8"]),  # the runtime environment is nearer to the task
        ({}, {CUDA: "9"}, [1], ["9"]),  # the raylet counts more than the user has named
        ({}, {CUDA: ""}, [1], []),
    ],
)
def test_ids_are_indices_or_the_entries_of_the_variable(
    environ: dict[str, str], env_vars: dict[str, str], indices: list[int], ids: list[int] | list[str]
) -> None:
    assert ids_of(NodeGpus.of(CUDA, environ), env_vars, indices) == ids


@pytest.mark.parametrize(
    ("environ", "env_vars", "indices", "value"),
    [
        ({}, {}, [1, 2], "1,2"),
        ({CUDA: "4,5"}, {}, [1], "5"),
        ({CUDA: "4,5"}, {}, [], None),
        (ON_ZERO, {}, [], ""),
        ({}, ON_ZERO, [], ""),
        (ON_ZERO, {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}, [], None),
        (NEVER, {}, [1], None),
        ({}, NEVER, [1], None),
        (NEVER, {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "false"}, [1], "1"),
        ({**NEVER, **ON_ZERO}, {}, [], None),
    ],
)
def test_the_variable_is_set_unless_there_is_nothing_to_show_or_the_user_forbids_it(
    environ: dict[str, str], env_vars: dict[str, str], indices: list[int], value: str | None
) -> None:
    assert variables_of(NodeGpus.of(CUDA, environ), env_vars, indices) == ({} if value is None else {CUDA: value})


def test_amds_variable_is_another_one() -> None:
    node = NodeGpus.of(HIP_VARIABLE, {CUDA: "7", HIP_VARIABLE: "2,3", **NEVER})
    assert variables_of(node, {}, [0]) == {HIP_VARIABLE: "2"}
