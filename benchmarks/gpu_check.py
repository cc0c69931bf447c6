"""Checks what minray promises about GPUs on a machine with one of NVIDIA's: ``python -m benchmarks.gpu_check``.

No test run has a GPU, so this is a program of its own. It needs the driver's library ``libcuda.so.1`` and nothing else; with
torch installed it checks tensors as well. It prints a line for each claim and ends with status 1 if one does not hold.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import minray as ray
from minray.node.accelerators import nvidia_model

ELEMENTS = 1_000_000
NO_DEVICE = 100
"""CUDA's error when no device is visible."""
HIDES_ALL = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}}


class Skipped(Exception):
    """Raised by a check that this machine cannot make."""


class Cuda:
    """The driver's library in this process. What it shows was decided by CUDA_VISIBLE_DEVICES before it began."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.has_devices = self._library.cuInit(0) != NO_DEVICE
        self._context = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA's error {status}")

    def devices(self) -> list[str]:
        """Return the ids of the visible devices."""
        if not self.has_devices:
            return []
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._id_of(index) for index in range(count.value)]

    def _id_of(self, index: int) -> str:
        device, identity = ctypes.c_int(), (ctypes.c_char * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDeviceGetUuid", identity, device)
        return bytes(identity.raw).hex()

    def make_array(self, value: int) -> ctypes.c_uint64:
        """Make an array of this value in the memory of the first visible device; return its address there."""
        device, address = ctypes.c_int(), ctypes.c_uint64()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.call("cuCtxSetCurrent", self._context)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * ELEMENTS))
        self.call("cuMemsetD32_v2", address, ctypes.c_uint(value), ctypes.c_size_t(ELEMENTS))
        return address

    def to_host(self, address: ctypes.c_uint64) -> Any:
        array = np.zeros(ELEMENTS, np.uint32)
        self.call("cuCtxSetCurrent", self._context)
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address, ctypes.c_size_t(array.nbytes))
        return array


@ray.remote(num_cpus=0)
def devices() -> list[str]:
    return Cuda().devices()


@ray.remote(num_cpus=0, num_gpus=0.5)
class Half:
    """Keeps an array on its half of a GPU."""

    def __init__(self, value: int) -> None:
        self.cuda = Cuda()
        self.address = self.cuda.make_array(value)

    def devices(self) -> list[str]:
        return self.cuda.devices()

    def array(self) -> Any:
        return self.cuda.to_host(self.address)


@ray.remote(num_cpus=0, num_gpus=1)
def tensor_from_gpu() -> Any:
    import torch

    return torch.arange(ELEMENTS, device="cuda").cpu()


# --- claims ------------------------------------------------------------------------------------------------------------


def products() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def finds_all_gpus() -> str:
    found, there = ray.cluster_resources().get("GPU"), len(Cuda().devices())
    assert found == there, f"{found} are found, CUDA shows {there}"
    return f"{there} of {there}"


def tells_their_model() -> str:
    model = nvidia_model(products()[0])
    (node,) = ray.nodes()
    label, resource = node["Labels"].get("ray.io/accelerator-type"), f"accelerator_type:{model}"
    assert label == model and resource in ray.cluster_resources(), f"the label is {label}, nvidia-smi says {products()[0]}"
    assert len(ray.get(devices.options(num_gpus=1, accelerator_type=model).remote())) == 1
    return model


def shows_a_task_its_gpu() -> str:
    (seen,) = ray.get(devices.options(num_gpus=1).remote())
    assert seen in Cuda().devices()
    return seen


def shows_no_gpu() -> str:
    seen = ray.get(devices.options(num_gpus=0, runtime_env=HIDES_ALL).remote())
    assert seen == [], f"a task without GPUs sees {seen}"
    return "none seen"


def lets_fractions_share() -> str:
    halves = [Half.remote(value) for value in (7, 8)]
    first, second = ray.get([half.devices.remote() for half in halves])
    assert len(first) == 1 and first == second, f"two halves of one GPU see {first} and {second}"
    return first[0]


def returns_host_arrays() -> str:
    halves = [Half.remote(value) for value in (7, 8)]
    arrays = ray.get([half.array.remote() for half in halves])
    assert [np.unique(array).tolist() for array in arrays] == [[7], [8]]
    assert not arrays[0].flags.writeable, "the array is a copy, and not the stored memory"
    return f"{arrays[0].nbytes} bytes each, read where they are stored"


def keeps_tasks_apart() -> str:
    if len(Cuda().devices()) < 2:
        raise Skipped("this machine has one GPU")
    seen = ray.get([Half.options(num_gpus=1).remote(value).devices.remote() for value in range(2)])
    assert seen[0] != seen[1], f"both see {seen[0]}"
    return "two tasks, two GPUs"


def returns_tensors() -> str:
    try:
        import torch
    except ImportError:
        raise Skipped("torch is not installed") from None
    if not torch.cuda.is_available():
        raise Skipped("this torch has no CUDA")
    tensor = ray.get(tensor_from_gpu.remote())
    assert tensor.device.type == "cpu" and torch.equal(tensor, torch.arange(ELEMENTS))
    return f"{tensor.nbytes} bytes"


def respects_the_variable() -> str:
    code = "import minray; minray.init(logging_level='ERROR'); print(minray.cluster_resources().get('GPU', 0))"
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 0, f"{done.stdout.strip()} GPUs are found"
    return "0 found"


CLAIMS: list[tuple[str, Callable[[], str]]] = [
    ("init() finds every GPU that CUDA shows", finds_all_gpus),
    ("their model is a resource and a label", tells_their_model),
    ("a task with num_gpus=1 sees one GPU", shows_a_task_its_gpu),
    ("a task with num_gpus=0 sees none, if all are to be hidden", shows_no_gpu),
    ("two actors with num_gpus=0.5 share a GPU", lets_fractions_share),
    ("arrays made on a GPU come back as host arrays", returns_host_arrays),
    ("two actors with num_gpus=1 see different GPUs", keeps_tasks_apart),
    ("a tensor made on a GPU comes back as a host tensor", returns_tensors),
    ("with CUDA_VISIBLE_DEVICES= no GPU is found", respects_the_variable),
]


def check(claim: str, prove: Callable[[], str]) -> bool:
    """Print whether a claim holds; return False if it does not."""
    try:
        result, detail = "pass", prove()
    except Skipped as reason:
        result, detail = "skip", str(reason)
    except Exception as error:
        result, detail = "FAIL", f"{type(error).__name__}: {error}"
    print(f"{result}  {claim}: {detail}", flush=True)
    return result != "FAIL"


def start_seconds(**options: Any) -> float:
    """Return how long ``init`` takes."""
    begun = time.perf_counter()
    ray.init(num_cpus=4, logging_level="ERROR", **options)
    return time.perf_counter() - begun


def main() -> int:
    try:
        has_devices = Cuda().has_devices
    except OSError as error:
        has_devices = False
        print(error)
    if not has_devices:
        print("there is no GPU of NVIDIA's here, so nothing was checked")
        return 2
    without = start_seconds(num_gpus=0)
    ray.shutdown()
    print(f"      init() takes {start_seconds():.2f} s here, and {without:.2f} s with num_gpus=0")
    try:
        failures = sum(not check(claim, prove) for claim, prove in CLAIMS)
        return 1 if failures else 0
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
