"""Values in the gcs, by key: ``_internal_kv_put(b"key", b"value")``.

Ray: python/ray/experimental/internal_kv.py

A value outlives the job that has put it, and dies with the cluster. Each value is stored behind 28 random bytes. So the gcs
can tell a second put of an equal value from a repetition of the first message, and ``overwrite=False`` has one winner.
"""

from __future__ import annotations

from typing import Any

from minray.api.calls import current_api, is_initialized
from minray.common.ids import OBJECT_ID_BYTES
from minray.protocol.base import Request
from minray.protocol.gcs import KvDel, KvGet, KvKeys, KvPut
from minray.values.object_ref import ObjectRef

Text = str | bytes


def _internal_kv_initialized() -> bool:
    return is_initialized()


def _internal_kv_get(key: Text, *, namespace: Text | None = None) -> bytes | None:
    """Return the value of a key, or None."""
    value: bytes | None = _ask(KvGet(_room(namespace), _binary(key))).value
    return None if value is None else value[OBJECT_ID_BYTES:]


def _internal_kv_exists(key: Text, *, namespace: Text | None = None) -> bool:
    return _internal_kv_get(key, namespace=namespace) is not None


def _internal_kv_put(key: Text, value: Text, overwrite: bool = True, *, namespace: Text | None = None) -> bool:
    """Set the value of a key, with ``overwrite=False`` only if it has none. Return whether the key had a value before."""
    existed = overwrite and _internal_kv_exists(key, namespace=namespace)
    stored = ObjectRef.from_random().binary() + _binary(value)
    added: bool = _ask(KvPut(_room(namespace), _binary(key), stored, overwrite)).added
    return existed or not added


def _internal_kv_del(key: Text, *, del_by_prefix: bool = False, namespace: Text | None = None) -> int:
    """Remove a key, or all keys with this prefix. Return the number of keys that had a value."""
    keys = [found for found in _internal_kv_list(key, namespace=namespace) if del_by_prefix or found == _binary(key)]
    for found in keys:
        _ask(KvDel(_room(namespace), found))
    return len(keys)


def _internal_kv_list(prefix: Text, *, namespace: Text | None = None) -> list[bytes]:
    """Return the keys with this prefix, sorted."""
    keys: list[bytes] = _ask(KvKeys(_room(namespace), _binary(prefix))).keys
    return keys


def _ask(request: Request[Any]) -> Any:
    api = current_api()
    return api.run_on_loop(lambda: api.port.process.gcs.call(request))


def _binary(text: Text) -> bytes:
    if not isinstance(text, str | bytes):
        raise TypeError(f"keys and values are str or bytes, not {type(text).__name__}")
    return text.encode() if isinstance(text, str) else text


def _room(namespace: Text | None) -> str:
    """Return the namespace in the gcs, apart from those of exported functions (``job_namespace``)."""
    return "internal_kv:" + _binary(namespace or "").decode(errors="backslashreplace")
