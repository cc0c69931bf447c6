"""The manifests of ``deploy/kubernetes``, read as Kubernetes reads them: objects, pods, containers.

``Container`` is what a kubelet would run: the command with its variables replaced, the environment, the probes and hooks.
Fields of the downward API are taken from the facts of the pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAYS = sorted(path for path in (DEPLOY / "kubernetes" / "overlays").iterdir() if path.is_dir())
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def read(path: Path) -> dict[str, Any]:
    """The one object of a file. Raises ValueError if there are more."""
    (found,) = yaml.safe_load_all(path.read_text())
    assert isinstance(found, dict), path
    return found


def objects(folder: Path = BASE) -> dict[str, dict[str, Any]]:
    """All objects of a folder, by the name of their file."""
    return {path.name: read(path) for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"}


def quantity(text: str) -> float:
    """A number of Kubernetes: ``2``, ``100m``, ``4Gi``."""
    if text.endswith("m"):
        return int(text[:-1]) / 1000
    return int(text[:-2]) * UNITS[text[-2:]] if text[-2:] in UNITS else float(text)


@dataclass(frozen=True)
class Container:
    """A container of a pod, with everything that depends on the pod filled in."""

    command: list[str]
    environment: dict[str, str]
    mounts: dict[str, str]
    """Name of the volume by the path where it is."""
    limits: dict[str, float]
    probes: dict[str, list[str]]
    """Command of each probe, by its name."""
    pre_stop: list[str]


@dataclass(frozen=True)
class PodTemplate:
    """The part of a workload that describes its pods."""

    name: str
    pod: dict[str, Any]

    def containers(self, kind: str, facts: Mapping[str, str]) -> Iterator[Container]:
        """The ``containers`` or ``initContainers``; ``facts``: values of the downward API by the path of their field."""
        for described in self.pod.get(kind, []):
            environment: dict[str, str] = {}
            for variable in described.get("env", []):
                source = variable.get("valueFrom")
                environment[variable["name"]] = facts[source["fieldRef"]["fieldPath"]] if source else variable["value"]
            command = [*described["command"], *described.get("args", [])]
            yield Container(
                command=[_expanded(word, environment) for word in command],
                environment=environment,
                mounts={mount["mountPath"]: mount["name"] for mount in described["volumeMounts"]},
                limits={name: quantity(str(text)) for name, text in described["resources"].get("limits", {}).items()},
                probes={
                    name.removesuffix("Probe"): probe["exec"]["command"]
                    for name, probe in described.items()
                    if name.endswith("Probe")
                },
                pre_stop=described.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []),
            )


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as Kubernetes does: only where there is such a variable."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), word)


def template(file: str, overlay: str = "") -> PodTemplate:
    """The pod template of the workload in a file, perhaps with an overlay's patch, as far as patches here go."""
    workload = read(BASE / file)
    pod = workload["spec"]["template"]["spec"]
    if overlay:
        _merge_lists(pod, read(BASE.parent / "overlays" / overlay / file)["spec"]["template"]["spec"])
    return PodTemplate(workload["metadata"]["name"], pod)


def _merge_lists(whole: dict[str, Any], patch: dict[str, Any]) -> None:
    """Add a patch's lists to those of an object; entries of the same name are one."""
    for key, entries in patch.items():
        known = {entry["name"]: entry for entry in whole[key]} if key.lower().endswith("containers") else {}
        for entry in entries:
            if entry["name"] in known:
                _merge_lists(known[entry["name"]], {name: value for name, value in entry.items() if name != "name"})
            else:
                whole[key].append(entry)
