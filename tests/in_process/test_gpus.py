"""A node whose machine has GPUs, as its finder tells: resources, a label, and what tasks see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import minray
from minray.node import node
from minray.util.accelerators import NVIDIA_H100, NVIDIA_L4


class TwoGpus:
    """Devices of a machine with two GPUs."""

    def names(self, directory: str) -> list[str]:
        return ["nvidia0", "nvidia1"] if directory == "/dev" else []

    def text(self, path: str) -> str:
        return ""

    def nvml_products(self) -> list[str]:
        return ["NVIDIA H100 80GB HBM3"] * 2

    def smi_products(self) -> list[str]:
        return []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(node, "RealDevices", TwoGpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield
    minray.shutdown()


def start(**options: Any) -> None:
    minray.init(local_mode=True, num_cpus=2, logging_level="WARNING", **options)


@minray.remote
def seen() -> Any:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), minray.get_gpu_ids()


@pytest.mark.usefixtures("machine")
def test_gpus_that_are_found_are_resources_with_a_model() -> None:
    start()
    resources = minray.cluster_resources()
    assert (resources["GPU"], resources["accelerator_type:H100"]) == (2, 1)
    (here,) = minray.nodes()
    assert here["Labels"]["ray.io/accelerator-type"] == "H100"
    assert minray.get(seen.options(num_gpus=2, accelerator_type=NVIDIA_H100).remote()) == ("0,1", [0, 1])
    waiting = seen.options(num_gpus=1, accelerator_type=NVIDIA_L4).remote()
    assert minray.wait([waiting], timeout=0.2) == ([], [waiting])
    minray.cancel(waiting)


@pytest.mark.usefixtures("machine")
def test_the_variable_of_the_program_chooses_and_names_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    start()
    assert minray.cluster_resources()["GPU"] == 1
    assert minray.get(seen.options(num_gpus=1).remote()) == ("1", ["1"])
    assert minray.get_gpu_ids() == [] and os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("options", [{"num_gpus": 0}, {"labels": {"ray.io/accelerator-type": "mine"}}])
def test_what_the_user_says_replaces_what_is_found(options: dict[str, Any]) -> None:
    start(**options)
    resources, (here,) = minray.cluster_resources(), minray.nodes()
    gpus = options.get("num_gpus", 2)
    assert resources.get("GPU", 0) == gpus and resources.get("accelerator_type:H100", 0) == min(gpus, 1)
    assert here["Labels"].get("ray.io/accelerator-type") == options.get("labels", {}).get("ray.io/accelerator-type")


@pytest.mark.usefixtures("machine")
def test_more_gpus_than_the_variable_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ValueError, match="num_gpus is 3, but CUDA_VISIBLE_DEVICES=4,5 names 2"):
        start(num_gpus=3)
