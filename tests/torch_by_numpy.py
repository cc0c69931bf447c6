"""The part of torch that ``minray/values/tensors.py`` calls, made of numpy: torch is too large to be installed for tests.

``tests/core_worker/test_tensors.py`` runs with this, and with torch itself where that is installed.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


class Dtype:
    """A type of elements, such as ``torch.float32``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Device:
    type = "cpu"


class Tensor:
    """A tensor in the main memory; an array has its data."""

    __slots__ = ("__dict__", "array", "requires_grad")
    device, layout = Device, "strided"
    _backward_hooks = None

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        self.array = array
        self.requires_grad = requires_grad

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reduce it as torch does, to bytes inside the stream."""
        return in_stream, (self.array.tobytes(), self.array.dtype.name, self.array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> Dtype:
        return Dtype(self.array.dtype.name)

    def dim(self) -> int:
        return int(self.array.ndim)

    def stride(self, axis: int | None = None) -> Any:
        strides = tuple(step // self.array.itemsize for step in self.array.strides)
        return strides if axis is None else strides[axis]

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def permute(self, axes: list[int]) -> Tensor:
        return Tensor(self.array.transpose(axes))

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.array))

    def reshape(self, size: int) -> Tensor:
        return Tensor(self.array.reshape(size))

    def view(self, dtype: Dtype) -> Tensor:
        return Tensor(self.array.view(dtype.name))

    def as_strided(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        steps = [step * self.array.itemsize for step in stride]
        return Tensor(np.lib.stride_tricks.as_strided(self.array, shape, steps, writeable=True))

    def requires_grad_(self, requires_grad: bool) -> Tensor:
        self.requires_grad = requires_grad
        return self

    def numpy(self) -> Any:
        return self.array

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj


def in_stream(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(np.frombuffer(data, dtype).reshape(shape).copy())


def from_numpy(array: Any) -> Tensor:
    """Refuse what cannot be written to, where torch warns."""
    assert array.flags.writeable
    return Tensor(array)


def make_torch() -> ModuleType:
    torch: Any = ModuleType("torch")
    torch.Tensor, torch.from_numpy, torch.strided = Tensor, from_numpy, Tensor.layout
    torch.empty = lambda size, dtype: Tensor(np.empty(size, dtype.name))
    for name in ("uint8", "int64", "float32", "float64", "complex64"):
        setattr(torch, name, Dtype(name))
    made: ModuleType = torch
    return made
