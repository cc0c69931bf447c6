"""Tensors of torch in the main memory: their data travels apart from the pickle stream, as that of numpy's arrays does.

Ray: python/ray/_private/tensor_serialization_utils.py

torch itself copies a tensor's whole storage into the stream, and each reader copies it out again. Here the writer makes no
copy, and the stream has only type, shape and strides.

torch knows no read-only tensor. A tensor that shows the object store's memory would let a task change the object for all its
readers, without an error. So the reader makes one copy, which is its own. ``RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1`` in the
reader's environment omits that copy, as in Ray; programs that set it must not write to tensors that they receive.

Tensors elsewhere (on a GPU), and those that are more than data (sparse, quantized, with hooks or attributes, of a subclass),
are pickled by torch. ``torch.nn.Parameter`` is such a subclass; its data is a tensor, and travels as one.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ZERO_COPY = "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
"""Variable that makes tensors show the object store's memory where they are read."""


def tensor_reducers(torch: Any) -> dict[type, Callable[[Any], Any]]:
    """Return the reducers for classes of torch. Raises AttributeError if torch is still being imported."""
    return {torch.Tensor: _reduce_tensor}


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor to a buffer apart from the stream; one with gaps, or of repeated elements, is copied first."""
    if not _is_plain(tensor):
        return tensor.__reduce_ex__(5)
    torch = sys.modules["torch"]
    data = tensor.detach()
    by_stride = sorted(range(data.dim()), key=data.stride, reverse=True)
    if not data.permute(by_stride).is_contiguous():
        data, by_stride = data.contiguous(), list(range(data.dim()))
    with suppress(RuntimeError):  # The bytes of a type that is newer than this code may have no such view.
        array = data.permute(by_stride).reshape(-1).view(torch.uint8).numpy()
        place = tuple(data.shape), tuple(data.stride())
        return _made, (pickle.PickleBuffer(array), str(data.dtype).removeprefix("torch."), *place, tensor.requires_grad)
    return tensor.__reduce_ex__(5)


def _is_plain(tensor: Any) -> bool:
    """Tell whether a tensor is nothing but data in the main memory. Not every version of torch has all these attributes."""
    is_here = tensor.device.type == "cpu" and tensor.layout is sys.modules["torch"].strided
    is_whole = not tensor.is_conj() and not tensor.is_neg() and not getattr(tensor, "is_quantized", False)
    has_more = tensor.__dict__ or tensor._backward_hooks or any(getattr(tensor, "names", ()))
    return is_here and is_whole and not has_more


def _made(data: Any, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool) -> Any:
    """Make a tensor from the bytes of its elements."""
    import numpy

    torch: Any = importlib.import_module("torch")
    flat = torch.empty(0, dtype=torch.uint8)
    if len(data):
        shown = numpy.frombuffer(data, numpy.uint8)
        shared = os.environ.get(ZERO_COPY, "").lower() in ("1", "true")
        flat = torch.from_numpy(numpy.asarray(_Writable(shown)) if shared else shown.copy())
    return flat.view(getattr(torch, dtype)).as_strided(shape, stride).requires_grad_(requires_grad)


class _Writable:
    """Makes numpy believe that an array may be written to, because torch warns of every other one."""

    def __init__(self, array: Any) -> None:
        self.array = array
        """The array whose memory is shown; it is kept, and the object with it, as long as what numpy makes of this."""
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
