"""The ids of the GPUs that a task holds, and the environment variable that hides all others from its process.

Ray: python/ray/_private/accelerators/, get_accelerator_ids_for_accelerator_resource in python/ray/_private/worker.py

A raylet counts GPUs by index. Libraries choose them by a variable, CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, which names
devices. If it was set already where the node was started, its entries are the node's GPUs: index 0 is the first entry. The
same holds for a value that the user gives in the ``env_vars`` of a runtime environment.

The rules are Ray's:
  * A task without GPUs finds the variable as it was, unless RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO is 1: then it sees no GPU.
  * With RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES (or ...HIP...) the variable is never set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

CUDA_VARIABLE, HIP_VARIABLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
"""Variables by which the libraries of NVIDIA and of AMD choose devices."""
OVERRIDE_ON_ZERO = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
NEVER_SET = "RAY_EXPERIMENTAL_NOSET_"
"""Beginning of the name of the variable that forbids to set another one."""


class NodeGpus(msgspec.Struct, frozen=True):
    """How the workers of a node are told their GPUs; decided when the node is started."""

    variable: str = CUDA_VARIABLE
    ids: tuple[str, ...] | None = None
    """Ids of the GPUs by their index, if the variable was set where the node was started; None: the indices are the ids."""
    is_set: bool = True
    """Whether the variable is set at all."""
    hides_all: bool = False
    """Whether the variable is set to nothing for tasks without GPUs."""

    @classmethod
    def of(cls, variable: str, environ: Mapping[str, str]) -> NodeGpus:
        """Read what the environment says about a variable."""
        return cls(
            variable=variable,
            ids=listed_ids(environ.get(variable)),
            is_set=not _is_on(environ, NEVER_SET + variable),
            hides_all=_is_on(environ, OVERRIDE_ON_ZERO),
        )


def listed_ids(value: str | None) -> tuple[str, ...] | None:
    """Return the ids that a value of the variable names; None if it is not set. A negative id ends the list, as for CUDA."""
    if value is None:
        return None
    ids: list[str] = []
    for entry in value.split(","):
        if entry.strip() in ("", "NoDevFiles") or entry.strip().startswith("-"):
            break
        ids.append(entry.strip())
    return tuple(ids)


def ids_of(gpus: NodeGpus, env_vars: Mapping[str, str], indices: Sequence[int]) -> list[int] | list[str]:
    """Return the ids of the GPUs with these indices, in a runtime environment with these ``env_vars``.

    All ids of the variable are returned if it has too few of them: the user has chosen devices, and not the raylet.
    """
    ids = listed_ids(env_vars[gpus.variable]) if gpus.variable in env_vars else gpus.ids
    if ids is None:
        return list(indices)
    return [ids[index] for index in indices] if all(index < len(ids) for index in indices) else list(ids)


def variables_of(gpus: NodeGpus, env_vars: Mapping[str, str], indices: Sequence[int]) -> dict[str, str]:
    """Return the variables to set in a worker that serves a lease with these GPUs; empty if nothing is to be set."""
    is_set = not _is_on(env_vars, NEVER_SET + gpus.variable, not gpus.is_set)
    ids = ids_of(gpus, env_vars, indices)
    if not is_set or not ids and not _is_on(env_vars, OVERRIDE_ON_ZERO, gpus.hides_all):
        return {}
    return {gpus.variable: ",".join(map(str, ids))}


def _is_on(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    return environ[name].lower() in ("1", "true") if name in environ else default
