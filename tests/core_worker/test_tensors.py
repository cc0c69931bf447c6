"""Tensors of torch travel apart from the pickle stream, and are the reader's own unless it says otherwise."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minray.values import serialization, tensors
from minray.values.serialization import Serialized, deserialize, serialize
from tests.torch_by_numpy import make_torch

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


@pytest.fixture(params=["by numpy", pytest.param("torch", marks=needs_torch)])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch, and what stands for it."""
    monkeypatch.setattr(serialization, "_array_reducers", {})
    monkeypatch.setattr(serialization, "_known_libraries", set())
    monkeypatch.delenv(tensors.ZERO_COPY, raising=False)
    if request.param == "torch":
        yield pytest.importorskip("torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", make_torch())
        yield sys.modules["torch"]


def sent(value: Any) -> Serialized:
    """Serialize a value, and make its buffers what a reader gets: read-only memory."""
    serialized = serialize(value)
    return serialized._replace(buffers=[memoryview(bytes(buffer)) for buffer in serialized.buffers])


def received(serialized: Serialized) -> Any:
    return deserialize(serialized.data, serialized.buffers, [])


@pytest.mark.parametrize(
    ("array", "stride"),
    [
        (MATRIX, (4, 1)),
        (MATRIX.T, (1, 4)),  # as dense as before: the order of the elements stays
        (MATRIX[:, ::2], (2, 1)),  # with gaps
        (np.broadcast_to(MATRIX[0], (2, 4)).copy()[:, :1], (1, 1)),
        (np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(0, 2, 1), (12, 1, 4)),
        (np.array(2.5), ()),
        (np.zeros((0, 3), np.complex64), (3, 1)),  # which numpy forgets
    ],
)
def test_a_tensor_comes_back_as_it_was_and_its_bytes_are_not_in_the_stream(
    torch: Any, array: Any, stride: tuple[int, ...]
) -> None:
    serialized = sent([torch.from_numpy(array)])
    assert len(serialized.data) < 300
    (out,) = received(serialized)
    assert type(out) is torch.Tensor and np.array_equal(out.numpy(), array) and out.stride() in (stride, (0, 0))
    assert not out.requires_grad and str(out.dtype) == str(torch.from_numpy(array).dtype)


def test_the_writer_copies_nothing(torch: Any) -> None:
    array = np.zeros(100_000)
    (buffer,) = serialize(torch.from_numpy(array)).buffers
    array[7] = 1
    assert np.frombuffer(buffer)[7] == 1


def test_each_reader_has_a_tensor_of_its_own(torch: Any) -> None:
    serialized = sent(torch.from_numpy(np.zeros(10)))
    first, second = received(serialized), received(serialized)
    first.numpy()[:] = 1
    assert second.numpy().tolist() == received(serialized).numpy().tolist() == [0] * 10


def test_a_reader_that_asks_for_it_is_shown_the_stored_memory(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor keeps that memory when everything else has forgotten it. Nothing warns."""
    monkeypatch.setenv(tensors.ZERO_COPY, "1")
    memory = bytearray(np.arange(50_000.0))
    serialized = serialize(torch.from_numpy(np.zeros(50_000)))._replace(buffers=[memoryview(memory).toreadonly()])
    out = received(serialized)
    del serialized
    np.frombuffer(memory)[3] = -1.0
    assert out.numpy()[3] == -1 and out.numpy()[49_999] == 49_999


def test_what_wants_gradients_still_does(torch: Any) -> None:
    assert received(sent(torch.from_numpy(np.zeros(3)).requires_grad_(True))).requires_grad


def test_what_is_more_than_data_is_left_to_torch(torch: Any) -> None:
    tensor = torch.from_numpy(np.arange(3.0))
    tensor.note = "mine"
    serialized = sent(tensor)
    assert serialized.buffers == [] and received(serialized).numpy().tolist() == [0, 1, 2]


def test_torch_that_is_being_imported_is_met_again(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, whole = torch.from_numpy(MATRIX), sys.modules["torch"]
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    serialize([MATRIX])
    monkeypatch.setitem(sys.modules, "torch", whole)
    assert len(sent(tensor).buffers) == 1


@needs_torch
@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "bfloat16", "float16", "float8_e4m3fn", "complex128"])
def test_every_type_of_elements_travels(name: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(5, 3).to(getattr(torch, name))
    serialized = sent(tensor)
    out = received(serialized)
    assert len(serialized.buffers) == 1 and out.dtype is tensor.dtype
    assert out.view(torch.uint8).equal(tensor.view(torch.uint8))


@needs_torch
def test_models_and_their_states_travel_with_their_parameters_apart() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.BatchNorm1d(100))
    serialized = sent([model, model.state_dict()])
    out, state = received(serialized)
    assert sum(len(buffer) for buffer in serialized.buffers) >= 200 * 100 * 4 and len(serialized.data) < 10_000
    assert all(torch.equal(state[name], value) for name, value in out.state_dict().items())
    assert all(type(parameter) is torch.nn.Parameter and parameter.requires_grad for parameter in out.parameters())


@needs_torch
def test_tensors_that_are_not_plain_data_come_back() -> None:
    torch = pytest.importorskip("torch")
    values = torch.complex(torch.ones(3), torch.arange(3.0))
    conj, sparse = received(sent(values.conj())), received(sent(torch.eye(3).to_sparse()))
    assert torch.equal(conj, values.conj()) and torch.equal(sparse.to_dense(), torch.eye(3))
    assert torch.equal(received(sent(torch.ones(2).expand(3, 2))), torch.ones(3, 2))
    assert received(sent(torch.empty(3, device="meta"))).device.type == "meta"
