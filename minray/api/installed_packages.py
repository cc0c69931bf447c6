"""The fields ``pip``, ``uv``, ``conda`` and ``py_executable`` of a runtime environment: is all of it installed here?

Ray: parse_and_validate_pip, parse_and_validate_uv, parse_and_validate_conda in python/ray/_private/runtime_env/validation.py

Ray installs packages for each such environment. minray installs nothing. It takes the fields in all forms that Ray takes,
and accepts them at once if the Python that reads them has everything already. Otherwise ValueError names what is missing.

Options of the installers (indexes, versions of pip, flags) are checked for their types and have no effect.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minray.common.requirements import satisfies, unmet
from minray.errors.tracebacks import hides_from_pytest

__tracebackhide__ = hides_from_pytest

ADVICE = "minray installs nothing: install it on every node, into the environment from which the cluster is started"
_OPTIONS: dict[str, dict[str, type]] = {
    "pip": {"pip_check": bool, "pip_version": str, "pip_install_options": list},
    "uv": {"uv_check": bool, "uv_version": str, "uv_pip_install_options": list},
}
"""The fields that the dict forms may have beside ``packages``, with their types."""
_MATCH_SPEC = re.compile(r"(?:[\w.-]+(?:/[\w.-]+)?::)?(?P<name>[\w.-]+)\s*(?P<conditions>.*)")
"""A package as conda writes it: ``channel::name``, then conditions on the version."""


def check_installed(name: str, environment: Mapping[str, Any]) -> None:
    """Check the fields that would have Ray install something; ``name`` is the environment's name in errors.

    Raises ValueError if something is missing here, or if a field cannot be read, TypeError for wrong types.
    """
    given = [field for field in ("pip", "uv", "conda") if environment.get(field) is not None]
    if len(given) > 1:
        raise ValueError(
            f"{name}: the fields 'pip', 'uv' and 'conda' cannot be specified at the same time, but {given} are; "
            "with conda, list the packages for pip among the dependencies of the conda environment"
        )
    for field in ("pip", "uv"):
        if environment.get(field) is not None:
            _check_requirements(f"{name}[{field!r}]", field, environment[field])
    if environment.get("conda") is not None:
        _check_conda(f"{name}['conda']", environment["conda"])
    if environment.get("py_executable") is not None:
        _check_executable(f"{name}['py_executable']", environment["py_executable"])


def _complain(name: str, complaints: list[str]) -> None:
    if complaints:
        raise ValueError(f"{name}: {'; '.join(complaints)}. {ADVICE}")


# --- pip and uv --------------------------------------------------------------------------------------------------------


def _check_requirements(name: str, field: str, value: Any) -> None:
    packages: Any = value
    if isinstance(value, Mapping):
        _check_options(name, field, value)
        packages = value["packages"]
    if isinstance(packages, str | os.PathLike):
        requirements = list(_lines_of(name, Path(packages), []))
    elif isinstance(packages, list | tuple) and all(isinstance(package, str) for package in packages):
        requirements = [each for line in packages if (each := _requirement(line))]
    else:
        raise TypeError(f"{name} must be a list of str, the path of a requirements.txt or a dict, not {packages!r}")
    _complain(name, _unmet(name, requirements))


def _unmet(name: str, requirements: list[str]) -> list[str]:
    try:
        return unmet(requirements)
    except ValueError as error:
        raise ValueError(f"{name}: {error}. {ADVICE}") from None


def _check_options(name: str, field: str, value: Mapping[str, Any]) -> None:
    types = _OPTIONS[field]
    if unknown := [key for key in value if key not in ("packages", *types)]:
        raise ValueError(f"{name} can only have the fields packages, {', '.join(types)}, but has {unknown}")
    if "packages" not in value:
        raise ValueError(f"{name} must include the field 'packages', but is {dict(value)}")
    for key, wanted in types.items():
        given: Any = value.get(key, wanted())
        is_wanted = isinstance(given, wanted)
        if not is_wanted or (wanted is list and not all(isinstance(each, str) for each in given)):
            shown = "list of str" if wanted is list else wanted.__name__
            raise TypeError(f"{name}[{key!r}] must be a {shown}, not {given!r}")


def _lines_of(name: str, path: Path, above: list[Path]) -> Iterator[str]:
    """Yield the requirements in a requirements.txt, and in the files that it includes."""
    if not path.is_file():
        raise ValueError(f"{name}: {str(path)!r} is not a file here")
    if path in above:
        raise ValueError(f"{name}: {str(path)!r} includes itself")
    for line in re.sub(r"\\\r?\n", "", path.read_text()).splitlines():
        included = re.match(r"\s*(?:-r|--requirement)[\s=]*(\S+)", line)
        if included is not None:
            yield from _lines_of(name, path.parent / included[1], [*above, path])
        elif requirement := _requirement(line):
            yield requirement


def _requirement(line: str) -> str:
    """Return the requirement in a line without its comment and options; empty if there is none.

    Options are settings of the installer, except ``-e``, which has a requirement.
    """
    line = re.sub(r"(?:^|\s+)#.*", "", line).strip()
    if line.startswith("-") and not re.match(r"-e\b|--editable\b", line):
        return ""
    return re.split(r"\s--?(?=[a-z])", line)[0].strip()


# --- conda -------------------------------------------------------------------------------------------------------------


def _check_conda(name: str, value: Any) -> None:
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not text.endswith((".yaml", ".yml")):
            _check_conda_environment(name, text)
            return
        value = _read_yaml(name, Path(text))
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be the name or path of an environment, a YAML file or a dict, not {value!r}")
    complaints: list[str] = []
    for dependency in value.get("dependencies") or ():
        if isinstance(dependency, Mapping):
            _check_requirements(f"{name}['pip']", "pip", list(dependency.get("pip") or ()))
        elif isinstance(dependency, str):
            complaints += _complaints_about(name, dependency)
        else:
            raise TypeError(f"{name}: a dependency must be a str or a dict with the key 'pip', not {dependency!r}")
    _complain(name, complaints)


def _check_conda_environment(name: str, text: str) -> None:
    """Check that this Python runs in the conda environment of this name, or in this directory."""
    is_here = os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    if os.path.isabs(text):
        same = os.path.realpath(text) == os.path.realpath(sys.prefix)
    else:
        same = is_here and text in (os.environ.get("CONDA_DEFAULT_ENV"), os.path.basename(sys.prefix))
    if not same:
        raise ValueError(
            f"{name}: this Python does not run in the conda environment {text!r} but in {sys.prefix}. minray starts its "
            "workers in the environment of the cluster: activate the environment before you start it"
        )


def _read_yaml(name: str, path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{name}: there is no YAML file {str(path)!r} here")
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ValueError(f"{name}: PyYAML, which reads {str(path)!r}, is not installed; pass a dict instead") from None
    try:
        return yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: {str(path)!r} is not YAML: {error}") from None


def _complaints_about(name: str, dependency: str) -> list[str]:
    """Return complaints about one package, as conda writes it.

    A package of the running conda environment counts, and so does a Python distribution of the same name.
    """
    found = _MATCH_SPEC.fullmatch(dependency.strip())
    if found is None:
        raise ValueError(f"{name}: {dependency!r} is not a package as conda writes it, such as 'numpy>=2'")
    package, conditions = found["name"].lower(), _conditions(found["conditions"])
    versions = [platform.python_version()] if package == "python" else list(_conda_versions(package))
    if not versions:
        return _unmet(name, [f"{package}{conditions}"])
    if satisfies(versions[0], conditions):
        return []
    return [f"{dependency} is not installed; {package} {versions[0]} is"]


def _conditions(text: str) -> str:
    """Write conda's conditions as Python's: ``=1.2`` and ``1.2=build`` of conda are ``==1.2.*`` and ``==1.2``."""
    written: list[str] = []
    for part in filter(None, re.split(r"\s*,\s*", text.strip())):
        sign, version, build = re.fullmatch(r"([=<>!~]*)\s*([^\s=]*)[\s=]*(.*)", part).groups()  # type: ignore[union-attr]
        if sign == "=" and not build:
            written.append(f"=={version.removesuffix('.*').removesuffix('*')}.*")
        elif version not in ("", "*"):
            written.append(f"{'==' if sign in ('', '=') else sign}{version}")
    return ",".join(written)


def _conda_versions(package: str) -> Iterator[str]:
    """Yield the version of a package that conda has installed into the running environment."""
    for path in Path(sys.prefix, "conda-meta").glob(f"{package}-*.json"):
        record = json.loads(path.read_text())
        if record.get("name") == package:
            yield record["version"]


# --- Python itself -----------------------------------------------------------------------------------------------------


def _check_executable(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path or a command, not {type(value).__name__}")
    words = [os.fspath(value)] if os.path.exists(value) else shlex.split(os.fspath(value))  # A path may have spaces.
    found = shutil.which(words[0]) if len(words) == 1 else None
    own = os.path.abspath(sys.executable)
    is_own = found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(own)
    if not is_own or not os.path.samefile(str(found), own):
        raise ValueError(
            f"{name}: {os.fspath(value)!r} is not the Python of this program, {own}. minray starts its workers with the "
            "Python of the cluster: start the cluster with the other one"
        )
