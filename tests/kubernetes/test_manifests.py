"""The manifests of ``deploy/`` without running them: their schemas, and what must hold between them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from minray.cli.main import main
from minray.common.config import SystemConfig
from minray.common.labels import parse_labels
from minray.node.discovery import endpoint_of, parse_token, with_environment
from minray.platform.transport.tls import TlsFiles, TlsFilesWrong, check, files_of
from tests.kubernetes.manifests import BASE, DEPLOY, OVERLAYS, ROOT, Container, objects, read, template
from tests.platform.certificates import authority

WORKLOADS = ["head.yaml", "worker.yaml"]
FACTS = {"status.podIP": "10.0.0.7", "metadata.name": "minray-x-0", "spec.nodeName": "machine-1.example.org"}
MINORS = 3
"""Number of Kubernetes's newest minor versions that the manifests must fit."""


def validators() -> list[tuple[str, Any]]:
    library = pytest.importorskip("kubernetes_validate")
    newest = [int(part) for part in library.latest_version().split(".")]
    return [(f"{newest[0]}.{newest[1] - back}", library) for back in range(MINORS)]


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod templates of the base and of every overlay's patches."""
    for folder in (BASE, *OVERLAYS):
        for name, found in objects(folder).items():
            if found["kind"] in ("StatefulSet", "Deployment"):
                yield f"{folder.name}/{name}", found


def containers(file: str) -> list[Container]:
    described = template(file)
    return [*described.containers("initContainers", FACTS), *described.containers("containers", FACTS)]


@pytest.mark.parametrize("name", objects())
def test_each_object_fits_the_schemas_of_the_last_minors_strictly(name: str) -> None:
    for version, library in validators():
        library.validate(objects()[name], version, strict=True)


def test_a_misspelt_field_does_not_fit() -> None:
    wrong = read(BASE / "worker.yaml")
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 600
    for version, library in validators():
        with pytest.raises(library.ValidationError):
            library.validate(wrong, version, strict=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_kustomize_builds_objects_that_fit(folder: Path) -> None:
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    found = list(yaml.safe_load_all(built.stdout))
    expected = sorted((one["kind"], one["metadata"]["name"]) for name, one in objects().items() if name != "secret.yaml")
    assert sorted((one["kind"], one["metadata"]["name"]) for one in found) == expected
    for version, library in validators():
        for one in found:
            library.validate(one, version, strict=True)
    if folder.name == "gpu":
        (worker,) = (one for one in found if one["kind"] == "Deployment")
        (container,) = worker["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 1}
        assert {"name": "RAY_NODE_TYPE_NAME", "value": "gpu"} in container["env"]
    if folder.name == "tls":
        pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] in ("StatefulSet", "Deployment")]
        for container in [one for pod in pods for one in [*pod.get("initContainers", []), *pod["containers"]]]:
            assert {"minray", "minray-tls"} <= {Path(mount["mountPath"]).name for mount in container["volumeMounts"]}
            assert {"HOME", "MINRAY_TLS_KEY"} <= {variable["name"] for variable in container["env"]}


def test_kustomize_knows_every_file_but_the_template_of_the_secret() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "secret.yaml"]) == sorted(objects())


def test_the_template_of_the_secret_is_no_token() -> None:
    with pytest.raises(RuntimeError, match="is not a cluster token"):
        parse_token(read(BASE / "secret.yaml")["stringData"]["token"], "secret.yaml")


TLS = BASE.parent / "overlays" / "tls"


@pytest.mark.parametrize("file", WORKLOADS)
def test_with_tls_every_container_finds_the_files_of_the_secret(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, pod = read(TLS / "secret.yaml"), read(TLS / file)["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "tls", "secret": {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}}]
    own = authority().sign("pods", extensions="subjectAltName=DNS:minray-head")
    for name, path in (("tls.crt", own.cert), ("tls.key", own.key), ("ca.crt", own.ca)):
        shutil.copy(path, tmp_path / name)
    (tmp_path / "tls.key").chmod(pod["volumes"][0]["secret"]["defaultMode"])
    patched = [*pod.get("initContainers", []), *pod["containers"]]
    described = template(file).pod
    names = [one["name"] for one in [*described.get("initContainers", []), *described["containers"]]]
    assert [one["name"] for one in patched] == names, "a container is without TLS"
    for container in patched:
        (mount,) = container["volumeMounts"]
        assert mount["name"] == "tls" and mount["readOnly"]
        for variable in container["env"]:
            folder, _, key = variable["value"].rpartition("/")
            assert folder == mount["mountPath"] and key in secret["stringData"]
            monkeypatch.setenv(variable["name"], str(tmp_path / key))
        files = files_of(SystemConfig.from_overrides(with_environment(None)))
        assert files is not None
        check(files)


def test_the_template_of_the_certificates_is_refused(tmp_path: Path) -> None:
    for name, text in read(TLS / "secret.yaml")["stringData"].items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o400)
    with pytest.raises(TlsFilesWrong, match="contains no"):
        check(TlsFiles(*(str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt"))))


@pytest.mark.parametrize("file", WORKLOADS)
def test_pods_run_without_rights(file: str) -> None:
    pod = template(file).pod
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == read(BASE / "service-account.yaml")["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("medium" in volume.get("emptyDir", {}) for volume in pod["volumes"]), "no memory for /dev/shm"
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        assert "/dev/shm" not in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert read(BASE / "service-account.yaml")["automountServiceAccountToken"] is False


@pytest.mark.parametrize("file", WORKLOADS)
def test_the_commands_have_options_that_minray_knows(file: str) -> None:
    for container in containers(file):
        for command in filter(None, [container.command, container.pre_stop]):
            assert command[0] == "minray"
            if command[1] != "health-check":
                known = CliRunner().invoke(main, [command[1], "--help"]).output
                assert not [word for word in command[2:] if word.partition("=")[0] not in known]
        for probe in container.probes.values():
            assert probe[:2] == ["minray", "health-check"]
        for word in container.command:
            option, _, value = word.partition("=")
            assert "$(" not in value, "a variable that the manifest does not set"
            if option == "--address":
                service = read(BASE / "head-service.yaml")
                port = service["spec"]["ports"][0]["port"]
                assert endpoint_of(value) == f"tcp:{service['metadata']['name']}:{port}"
            if option == "--port":
                assert int(value) == read(BASE / "head-service.yaml")["spec"]["ports"][0]["port"]
            if option == "--labels":
                assert parse_labels(value) == {"minray.io/pod": "minray-x-0", "minray.io/machine": "machine-1.example.org"}
            if option == "--system-config":
                SystemConfig.from_overrides(json.loads(value))
        spaces = container.environment["MINRAY_TRUSTED_DIRECTORIES"].split(":")
        assert container.environment["MINRAY_TMPDIR"].startswith("/tmp/") and "/tmp" in spaces
        assert {"/tmp", "/run/secrets/minray"} <= container.mounts.keys()
        assert container.mounts.keys() - {"/run/secrets/minray"} <= set(spaces)


def test_the_name_of_the_head_leads_to_its_pod_alone() -> None:
    service, head = read(BASE / "head-service.yaml")["spec"], read(BASE / "head.yaml")["spec"]
    assert service["clusterIP"] == "None" and head["replicas"] == 1
    assert head["serviceName"] == read(BASE / "head-service.yaml")["metadata"]["name"]
    worker = read(BASE / "worker.yaml")["spec"]
    assert service["selector"].items() <= head["template"]["metadata"]["labels"].items()
    assert not service["selector"].items() <= worker["template"]["metadata"]["labels"].items()
    policy = read(BASE / "network-policy.yaml")["spec"]
    for workload in (head, worker):
        assert workload["selector"]["matchLabels"].items() <= workload["template"]["metadata"]["labels"].items()
        assert policy["podSelector"]["matchLabels"].items() <= workload["template"]["metadata"]["labels"].items()
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
    budget = read(BASE / "pod-disruption-budget.yaml")["spec"]
    assert budget["selector"] == worker["selector"]


def test_the_grace_period_is_longer_than_both_drains() -> None:
    (worker,) = template("worker.yaml").containers("containers", FACTS)
    (hook,) = (int(word.partition("=")[2]) for word in worker.pre_stop if word.startswith("--deadline-remaining-seconds="))
    (signalled,) = (int(word.partition("=")[2]) for word in worker.command if word.startswith("--drain-on-sigterm="))
    assert hook + signalled < template("worker.yaml").pod["terminationGracePeriodSeconds"]
    assert "--wait" in worker.pre_stop


def test_probes_are_patient() -> None:
    for file in WORKLOADS:
        (described,) = template(file).pod["containers"]
        liveness = described["livenessProbe"]
        assert "--liveness" in liveness["exec"]["command"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 300
        assert min(described[f"{name}Probe"]["timeoutSeconds"] for name in ("startup", "readiness", "liveness")) > 5


def test_the_image_is_made_of_files_that_are_there_and_runs_as_nobody_special() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.split(r"(?m)^FROM ", text)[1:]
    assert len(stages) == 2 and stages[0].splitlines()[0].endswith(" AS build")
    for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text):
        assert all((ROOT / name).exists() for name in line.split()[:-1]), line
    assert re.search(r"(?m)^COPY --from=build ", stages[1])
    user = re.findall(r"(?m)^USER (\d+):(\d+)$", stages[1])
    context = template("worker.yaml").pod["securityContext"]
    assert user == [(str(context["runAsUser"]), str(context["runAsGroup"]))]


PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def test_the_page_tells_the_probes_and_their_commands_as_they_are() -> None:
    for file in WORKLOADS:
        for container in containers(file):
            commands = [*container.probes.values()]
            if container.command[1] == "health-check":
                commands.append([word for word in container.command if not word.startswith("--token-file")])
            assert all(f"| `{' '.join(command)}` |" in PAGE for command in commands)


def test_the_commands_of_the_page_have_options_that_minray_knows() -> None:
    found = re.findall(r"(?:^|-- |`)minray ([a-z-]+)((?: --[^\s`]+)*)", PAGE, re.MULTILINE)
    assert {"start", "status", "health-check", "drain-node"} <= {name for name, _ in found}
    for name, options in found:
        if name != "health-check":  # has the test above
            known = CliRunner().invoke(main, [name, "--help"]).output
            assert not [word for word in options.split() if word.partition("=")[0] not in known], name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kustomization_of_the_page_names_image_and_replicas(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    (tmp_path / "mine").mkdir()
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine" / "kustomization.yaml").write_text(block)
    built = subprocess.run(["kubectl", "kustomize", str(tmp_path / "mine")], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    workloads = [one["spec"] for one in yaml.safe_load_all(built.stdout) if one["kind"] in ("StatefulSet", "Deployment")]
    assert sorted(spec["replicas"] for spec in workloads) == [1, 4]
    pods = [spec["template"]["spec"] for spec in workloads]
    images = {each["image"] for pod in pods for each in [*pod["containers"], *pod.get("initContainers", [])]}
    assert images == {"REGISTRY/minray:0.1.0"}


def test_every_patch_changes_a_workload_of_the_base() -> None:
    base = {name: found["metadata"]["name"] for name, found in objects().items()}
    patches = [(name.partition("/")[2], found) for name, found in workloads() if not name.startswith("base/")]
    assert len(patches) == 5
    for name, found in patches:
        assert found["metadata"]["name"] == base[name]
