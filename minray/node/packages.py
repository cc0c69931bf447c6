"""Packs and uploads the directories of a job's runtime environment, when its driver connects.

Ray: python/ray/_private/runtime_env/working_dir.py, py_modules.py

``pack`` makes one package of ``working_dir`` and one of each entry of ``py_modules``. It runs before the driver connects, so
that a directory that is too large is an error before a cluster begins. ``PackedEnvironment.upload`` tells the gcs of the
packages, and gives it the small ones. A large one becomes an object of the driver: nodes fetch it from each other, and the
gcs does not have to send it to each of them.

Tasks run in the unpacked copy, on the driver's node as well, as in Ray. They do not see what changes in the original after
``init``, and what they write is not in the original.

A large package ends with its driver, which we do not like yet. A detached actor that outlives its driver cannot restart on a
node that has not unpacked the package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pickle import PickleBuffer
from typing import Any, NamedTuple

from minray.api.runtime_environment import module_path
from minray.common.package_uri import SCHEME, WHEEL, package_name, uri_of
from minray.common.requirements import unmet
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import RayError, RuntimeEnvSetupError
from minray.platform.base import CHUNK_BYTES
from minray.platform.storage import packages
from minray.protocol.base import encode
from minray.protocol.gcs import KvPut, PackageInfo, job_namespace
from minray.values.object_ref import ObjectRef

LIMIT_BYTES = 512 << 20
"""Largest package in bytes, as in Ray. It has to fit into an object store, and into the memory of the driver."""
MOST_IN_GCS_BYTES = CHUNK_BYTES
"""Largest package in bytes that the gcs keeps itself: as much as one message may have without delaying others."""
DEFAULT_EXCLUDES = ".git,.venv,venv,__pycache__"
"""Patterns that are left out of a ``working_dir``, as in Ray."""


class Package(NamedTuple):
    """A package of this job."""

    uri: str
    archive: bytes


class PackedEnvironment(NamedTuple):
    """A job's runtime environment in which every local path is replaced by the URI of a package."""

    environment: Mapping[str, Any]
    packages: Sequence[Package]

    def upload(self, api: UserApi) -> list[ObjectRef[Any]]:
        """Make the packages reachable for the workers of this driver's job; it keeps the returned references while it lives.

        For a user thread. Raises RuntimeEnvSetupError.
        """
        held: list[ObjectRef[Any]] = []
        for package in self.packages:
            try:
                if len(package.archive) <= MOST_IN_GCS_BYTES:
                    info = PackageInfo(archive=package.archive)
                else:
                    held.append(ref := api.put(PickleBuffer(package.archive)))
                    info = PackageInfo(object_id=ref.binary(), owner=ref.owner_address())
                request = KvPut(job_namespace(api.job_id), package.uri.encode(), encode(info), True)
                api.run_on_loop(partial(api.port.process.gcs.call, request))
            except RayError as error:
                raise RuntimeEnvSetupError(reason=f"{package.uri} cannot be uploaded: {error}") from error
        return held


def pack(environment: Mapping[str, Any] | None) -> PackedEnvironment:
    """Pack the local directories of a checked runtime environment. Raises RuntimeEnvSetupError, which says what to do."""
    given, found = dict(environment or {}), list[Package]()

    def replace(field: str, path: str, make: Callable[[str, Mapping[str, Any]], bytes]) -> str:
        if SCHEME.match(path):
            return path
        try:
            archive = make(path, given)
        except packages.PackageTooLarge as error:
            raise RuntimeEnvSetupError(
                reason=f"{field} {path!r} cannot be uploaded: {error}. Leave large files out with "
                "runtime_env={'excludes': [...]}, or list them in a .gitignore or .rayignore file"
            ) from None
        except (OSError, ValueError) as error:
            raise RuntimeEnvSetupError(reason=f"{field} {path!r} cannot be packed: {error}") from error
        uri = uri_of(package_name(archive))
        if all(package.uri != uri for package in found):
            found.append(Package(uri, archive))
        return uri

    if given.get("working_dir"):
        given["working_dir"] = replace("working_dir", os.fspath(given["working_dir"]), _working_dir)
    if given.get("py_modules"):
        paths = [module_path(module) or "" for module in given["py_modules"]]
        given["py_modules"] = [replace("py_modules", path, _module) for path in paths]
    return PackedEnvironment(given, found)


def _working_dir(path: str, environment: Mapping[str, Any]) -> bytes:
    if not os.path.isdir(path):
        return packages.read_archive(path, LIMIT_BYTES)
    defaults = _variable("OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", DEFAULT_EXCLUDES).split(",")
    excludes = [*filter(None, map(str.strip, defaults)), *(environment.get("excludes") or ())]
    return packages.pack_directory(path, excludes, LIMIT_BYTES, ignore_files=_ignore_files())


def _module(path: str, environment: Mapping[str, Any]) -> bytes:
    """Pack a module so that the directory that holds it can go on ``sys.path``."""
    if os.path.isdir(path):
        excludes = environment.get("excludes") or ()
        name = os.path.basename(os.path.abspath(path))
        return packages.pack_directory(path, excludes, LIMIT_BYTES, ignore_files=_ignore_files(), parent=name)
    if not path.endswith(WHEEL):
        return packages.pack_file(path, LIMIT_BYTES)
    archive = packages.read_archive(path, LIMIT_BYTES)
    if missing := unmet(packages.requirements_of_wheel(archive)):
        raise ValueError(f"the wheel needs packages, and minray installs nothing: {'; '.join(missing)}")
    return archive


def _ignore_files() -> Sequence[str]:
    is_ignored = _variable("RUNTIME_ENV_IGNORE_GITIGNORE", "0") == "1"
    return [name for name in packages.IGNORE_FILES if not (is_ignored and name == ".gitignore")]


def _variable(name: str, default: str) -> str:
    """Return an environment variable that has the prefix of minray or of Ray; unlike in ``setting``, an empty one counts."""
    return os.environ.get(f"MINRAY_{name}", os.environ.get(f"RAY_{name}", default))
