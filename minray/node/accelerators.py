"""The GPUs of the machine on which a node is started: how many, of which model, and by which variable they are chosen.

Ray: python/ray/_private/accelerators/nvidia_gpu.py, amd_gpu.py; _resolve_accelerator_resources in
python/ray/_private/resource_and_label_spec.py

Starting a node must stay fast where there are no GPUs, so the first question is always a directory listing.

  * NVIDIA: the device files /dev/nvidia0 and so on (/dev/dxg in WSL) show that there are GPUs. Then pynvml is asked, if it
    is installed; else the driver's files in /proc; and ``nvidia-smi`` only if those do not tell the model.
  * AMD: /dev/kfd, and the driver's files in /sys. The graphics part of a desktop processor has the same files. So a GPU
    counts only if it is made for computing (``AMD_MODELS``), or if ROCm is installed in /opt.

Left out: Intel's and Apple's GPUs, TPUs, Neuron cores and others are not found. A user gives such a node ``resources``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import msgspec

from minray.common.gpus import CUDA_VARIABLE, HIP_VARIABLE, NodeGpus
from minray.common.labels import RESERVED

TYPE_LABEL = f"{RESERVED}accelerator-type"
TYPE_RESOURCE = "accelerator_type:"
"""Beginning of the name of the resource that a node with such GPUs has once: the option ``accelerator_type`` asks for it."""
AMD_MODELS = {
    0x66A1: "AMD-Instinct-MI50",
    0x738C: "AMD-Instinct-MI100",
    0x7408: "AMD-Instinct-MI250X",
    0x740C: "AMD-Instinct-MI250X-MI250",
    0x740F: "AMD-Instinct-MI210",
    0x74A0: "AMD-Instinct-MI300A",
    0x74A1: "AMD-Instinct-MI300X-OAM",
    0x74A2: "AMD-Instinct-MI308X-OAM",
    0x74A5: "AMD-Instinct-MI325X-OAM",
    0x74A9: "AMD-Instinct-MI300X-HF",
    0x75A0: "AMD-Instinct-MI350X-OAM",
    0x75A3: "AMD-Instinct-MI355X-OAM",
}
"""Ray's names of AMD's GPUs for computing, by the device id on the PCI bus."""
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_NVIDIA_FILES = "/proc/driver/nvidia/gpus"
_MOST_LABEL_CHARACTERS = 63


class Devices(Protocol):
    """The questions to the machine; ``RealDevices`` answers them."""

    def names(self, directory: str) -> list[str]: ...

    def text(self, path: str) -> str: ...

    def nvml_products(self) -> list[str] | None: ...

    def smi_products(self) -> list[str]: ...


class Found(msgspec.Struct, frozen=True):
    """The GPUs with which a node starts."""

    count: float
    model: str
    """Model of the first GPU, as ``accelerator_type``; empty if it is not known."""
    gpus: NodeGpus


def gpus_at_start(given: float | None, devices: Devices, environ: Mapping[str, str]) -> Found:
    """Return the GPUs of a node for which the user has ``given`` a number, or None.

    A given number counts also if fewer GPUs are found: GPUs may be logical. Raises ValueError if the variable in the
    environment names fewer, or if it is one that minray does not set.
    """
    hides_all = NodeGpus.of(CUDA_VARIABLE, environ).hides_all
    models, variable = _find(devices) if given != 0 or hides_all else ([], CUDA_VARIABLE)
    if variable == HIP_VARIABLE and variable not in environ and "ROCR_VISIBLE_DEVICES" in environ:
        raise ValueError(f"choose AMD's GPUs by {HIP_VARIABLE}, which minray sets, and not by ROCR_VISIBLE_DEVICES")
    gpus = NodeGpus.of(variable, environ)
    if gpus.ids is not None:
        models = [_at(models, gpu_id) for gpu_id in gpus.ids[: len(models)]]
        if isinstance(given, int | float) and given > len(gpus.ids):
            named = f"{variable}={environ[variable]} names {len(gpus.ids)}"
            raise ValueError(f"num_gpus is {given:g}, but {named}: give fewer GPUs, or name more devices")
    count = len(models) if given is None else given
    return Found(count, models[0] if models and count else "", gpus)


def _at(models: list[str], gpu_id: str) -> str:
    """Return the model of a GPU. An id that is no index (a UUID) is taken for that of a GPU like the first."""
    index = int(gpu_id) if gpu_id.isdecimal() else 0
    return models[index if index < len(models) else 0]


def _find(devices: Devices) -> tuple[list[str], str]:
    """Return the models of this machine's GPUs by index, and the variable by which they are chosen."""
    present = devices.names("/dev")
    numbers = [int(match[1]) for name in present if (match := re.fullmatch(r"nvidia(\d+)", name))]
    if numbers or "dxg" in present:
        products = _nvidia_products(devices, numbers)
        if products:
            return [nvidia_model(product) for product in products], CUDA_VARIABLE
    if "kfd" in present:
        has_rocm = any(name.startswith("rocm") for name in devices.names("/opt"))
        nodes = sorted(devices.names(_TOPOLOGY), key=lambda name: (len(name), name))
        ids = [amd_device_id(devices.text(f"{_TOPOLOGY}/{node}/properties")) for node in nodes]
        models = [AMD_MODELS.get(device_id, "") for device_id in ids if device_id in AMD_MODELS or device_id and has_rocm]
        if models:
            return models, HIP_VARIABLE
    return [], CUDA_VARIABLE


def _nvidia_products(devices: Devices, numbers: list[int]) -> list[str]:
    told = devices.nvml_products()
    if told is not None:
        return told
    folders = devices.names(_NVIDIA_FILES)  # Named for places on the bus: CUDA and nvidia-smi count in this order.
    of_files = [nvidia_information(devices.text(f"{_NVIDIA_FILES}/{folder}/information")) for folder in folders]
    products = [product for number, product in of_files if number in numbers]
    if len(products) == len(numbers) > 0:
        return products
    return devices.smi_products() or [""] * len(numbers)


# --- What the sources say ----------------------------------------------------------------------------------------------


def nvidia_information(text: str) -> tuple[int, str]:
    """Read the driver's file about one GPU. Return the number of its device file (-1: not told) and its product name."""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    number = fields.get("Device Minor", "")
    return int(number) if number.isdecimal() else -1, fields.get("Model", "")


def nvidia_model(product: str) -> str:
    """Return Ray's name of a model: "H100" for "NVIDIA H100 80GB HBM3", "GeForce-RTX-5090" for a consumer's card.

    The model of a card for data centers is the first word with a digit, without what follows its capitals and digits, and
    with the words in capitals before it. Of other cards it is the whole product name without "NVIDIA".
    """
    words = product.split()
    line: list[str] = []
    for word in words[1:]:
        code = re.match(r"[A-Z0-9]*", word)[0]  # type: ignore[index]
        if any(character.isdigit() for character in code):
            return "-".join([*line, code])
        if not re.fullmatch(r"[A-Z]+", word):
            break
        line.append(word)
    name = "-".join(words[1:] if words[:1] == ["NVIDIA"] else words)
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:_MOST_LABEL_CHARACTERS].strip("-_.")


def amd_device_id(properties: str) -> int:
    """Read the driver's file about one node of a machine. Return the device id of its GPU; 0 if it has none."""
    fields = dict(line.split(maxsplit=1) for line in properties.splitlines() if len(line.split()) > 1)
    is_gpu = fields.get("simd_count", "0") != "0"
    return int(fields["device_id"]) if is_gpu and fields.get("device_id", "").isdecimal() else 0
