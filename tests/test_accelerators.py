"""The GPUs with which a node starts, on machines made of a few files, a library and a program."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minray.common.gpus import HIP_VARIABLE, NodeGpus
from minray.node.accelerators import AMD_MODELS, Found, amd_device_id, gpus_at_start, nvidia_information, nvidia_model
from minray.platform.process.devices import RealDevices
from minray.util import accelerators

H100 = "NVIDIA H100 80GB HBM3"
MI210, DESKTOP = 0x740F, 0x164E
"""Device ids of AMD's: a GPU for computing, and the graphics part of a processor."""


class Machine:
    """A directory in which this machine's files are looked for; without pynvml and nvidia-smi unless a test adds them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setenv("PATH", str(root))

    def add(self, path: str, text: str = "") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def add_nvidia(self, number: int, product: str = "") -> None:
        """Add a device file, and the driver's file about it if the product is told."""
        self.add(f"dev/nvidia{number}")
        if product:
            text = f"Model: \t\t {product}\nIRQ:   \t\t 37\nDevice Minor: \t {number}\n"
            self.add(f"proc/driver/nvidia/gpus/0000:{number:02x}:00.0/information", text)

    def add_amd(self, node: int, device_id: int) -> None:
        self.add("dev/kfd")
        text = f"cpu_cores_count 0\nsimd_count {416 if device_id else 0}\nvendor_id 4098\ndevice_id {device_id}\n"
        self.add(f"sys/class/kfd/kfd/topology/nodes/{node}/properties", text)

    def add_nvml(self, *products: str | bytes, fails_at: str = "") -> list[str]:
        """Install a library pynvml; return the list of what is called in it."""
        called: list[str] = []

        def function(name: str, answer: Any) -> Any:
            def call(*arguments: Any) -> Any:
                called.append(name)
                if name == fails_at:
                    raise RuntimeError("Driver Not Loaded")
                return answer(*arguments)

            return call

        library: Any = ModuleType("pynvml")
        library.nvmlInit = function("init", lambda: None)
        library.nvmlDeviceGetCount = function("count", lambda: len(products))
        library.nvmlDeviceGetHandleByIndex = function("handle", lambda index: index)
        library.nvmlDeviceGetName = function("name", lambda index: products[index])
        library.nvmlShutdown = function("shutdown", lambda: None)
        self._monkeypatch.setitem(sys.modules, "pynvml", library)
        return called

    def add_smi(self, script: str) -> None:
        self.add("nvidia-smi", f"#!/bin/sh\n{script}\n")
        (self.root / "nvidia-smi").chmod(0o755)

    def start(self, given: float | None = None, **environ: str) -> Found:
        return gpus_at_start(given, RealDevices(str(self.root)), environ)

    def start_and_count(self, **environ: str) -> tuple[float, str]:
        found = self.start(**environ)
        return found.count, found.model


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_machine_without_device_files_has_no_gpus_and_nothing_else_is_asked(machine: Machine) -> None:
    called = machine.add_nvml(H100)
    machine.add_smi("touch $0.called; echo NVIDIA H100")
    machine.add("dev/nvidiactl")
    machine.add("dev/nvidia-uvm")
    assert machine.start() == Found(0, "", NodeGpus())
    assert called == [] and not (machine.root / "nvidia-smi.called").exists()


def test_pynvml_is_asked_first(machine: Machine) -> None:
    machine.add_nvidia(0, "Tesla T4")
    called = machine.add_nvml(H100, H100.encode())
    assert machine.start_and_count() == (2, "H100")
    assert called[0] == "init" and called[-1] == "shutdown"


@pytest.mark.parametrize("fails_at", ["init", "count", "name"])
def test_the_drivers_files_are_read_if_pynvml_fails(machine: Machine, fails_at: str) -> None:
    for number in range(2):
        machine.add_nvidia(number, H100)
    called = machine.add_nvml(H100, fails_at=fails_at)
    assert machine.start_and_count() == (2, "H100")
    assert ("shutdown" in called) == (fails_at != "init")


def test_a_container_has_the_gpus_whose_device_files_it_was_given(machine: Machine) -> None:
    for number in range(4):
        machine.add_nvidia(number, H100 if number == 3 else "Tesla T4")
    for number in range(3):
        (machine.root / f"dev/nvidia{number}").unlink()
    machine.add_smi("exit 1")
    assert machine.start_and_count() == (1, "H100")


def test_nvidia_smi_is_asked_if_the_driver_has_no_files(machine: Machine) -> None:
    machine.add("dev/dxg")  # as in WSL
    machine.add_smi(f"echo '{H100}'; echo; echo '{H100}'")
    assert machine.start_and_count() == (2, "H100")


def test_without_any_of_these_the_device_files_are_counted(machine: Machine) -> None:
    machine.add_nvidia(0)
    machine.add_nvidia(11)
    assert machine.start_and_count() == (2, "")
    machine.add_smi("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9")
    assert machine.start_and_count() == (2, "")


def test_amds_gpus_are_found_in_the_kernels_files(machine: Machine) -> None:
    machine.add_amd(0, 0)
    for node in (1, 2, 10):
        machine.add_amd(node, MI210)
    found = machine.start(HIP_VISIBLE_DEVICES="1,2")
    assert found == Found(2, "AMD-Instinct-MI210", NodeGpus(HIP_VARIABLE, ("1", "2")))
    with pytest.raises(ValueError, match="choose AMD's GPUs by HIP_VISIBLE_DEVICES, .* not by ROCR_VISIBLE_DEVICES"):
        machine.start(ROCR_VISIBLE_DEVICES="1")


def test_the_graphics_of_a_desktop_count_only_with_rocm(machine: Machine) -> None:
    machine.add_amd(0, DESKTOP)
    assert machine.start() == Found(0, "", NodeGpus())
    machine.add("opt/rocm-6.2/.info/version", "6.2.0")
    assert machine.start() == Found(1, "", NodeGpus(HIP_VARIABLE))


def test_the_variable_of_the_parent_chooses_among_what_is_found(machine: Machine) -> None:
    for number, product in enumerate(("Tesla T4", H100, H100)):
        machine.add_nvidia(number, product)
    assert machine.start_and_count() == (3, "T4")
    assert machine.start_and_count(CUDA_VISIBLE_DEVICES="2,1") == (2, "H100")
    assert machine.start_and_count(CUDA_VISIBLE_DEVICES="GPU-1a,7,2,1") == (3, "T4")
    assert machine.start_and_count(CUDA_VISIBLE_DEVICES="") == (0, "")


def test_a_number_that_the_user_gives_counts_but_not_beyond_the_variable(machine: Machine) -> None:
    assert machine.start(2) == Found(2, "", NodeGpus())
    machine.add_nvidia(0, H100)
    assert machine.start(4) == Found(4, "H100", NodeGpus())
    assert machine.start(1, CUDA_VISIBLE_DEVICES="4,5") == Found(1, "H100", NodeGpus(ids=("4", "5")))
    with pytest.raises(ValueError, match=r"num_gpus is 3, but CUDA_VISIBLE_DEVICES=4,5 names 2: give fewer GPUs"):
        machine.start(3, CUDA_VISIBLE_DEVICES="4,5")


def test_a_node_without_gpus_asks_for_none_unless_it_must_hide_them(machine: Machine) -> None:
    machine.add_amd(1, MI210)
    assert machine.start(0) == Found(0, "", NodeGpus())
    assert machine.start(0, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="1").gpus == NodeGpus(HIP_VARIABLE, hides_all=True)


@pytest.mark.parametrize(
    ("product", "model"),
    [
        (H100, "H100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Quadro RTX 6000/8000", "RTX-6000"),
        ("NVIDIA GeForce GTX 1660 Ti", "GeForce-GTX-1660-Ti"),
        ("NVIDIA TITAN V", "TITAN-V"),
        ("Orin (nvgpu)", "Orin-nvgpu"),
        ("", ""),
    ],
)
def test_models_have_rays_names_and_are_valid_labels(product: str, model: str) -> None:
    assert nvidia_model(product) == model


def test_each_name_for_a_gpu_of_amds_is_one_that_is_found() -> None:
    assert {name for key, name in vars(accelerators).items() if key.startswith("AMD_")} <= set(AMD_MODELS.values())


def test_files_that_say_nothing_are_no_gpus() -> None:
    assert nvidia_information("") == (-1, "")
    assert nvidia_information("Model: Tesla T4\nDevice Minor: ?\nno colon") == (-1, "Tesla T4")
    assert amd_device_id("") == amd_device_id("simd_count 4\ndevice_id\n") == 0
