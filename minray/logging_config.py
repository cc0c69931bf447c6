"""``LoggingConfig``: records of Python's logging as JSON or text, with the ids of the job, worker, node, actor and task.

Ray: python/ray/_private/ray_logging/logging_config.py, python/ray/_common/formatters.py, filters.py

    ray.init(logging_config=ray.LoggingConfig(encoding="JSON", log_level="INFO"))

The driver sets up its root logger, and so does each worker of the job before its first task. Records go to standard error,
and with it to the worker's log file. A record is one line of JSON with Ray's field names, or a line of text that ends in
``key=value``. What a program gives in ``extra`` is a field, too.

The facts are those of the thread or coroutine that logs. An actor's name is asked from the gcs once, by the first record.

Left out: ``RAY_LOGGING_CONFIG_ENCODING``, and the flattening of Ray Serve's fields.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

from minray.api.calls import connected_api
from minray.runtime_context import RuntimeContext

ENCODINGS = ("TEXT", "JSON")
STANDARD_ATTRS = (
    "args", "asctime", "created", "exc_info", "exc_text", "filename", "funcName", "levelname", "levelno", "lineno",
    "message", "module", "msecs", "msg", "name", "pathname", "process", "processName", "relativeCreated", "stack_info",
    "taskName", "thread", "threadName",
)  # fmt: skip
"""Attributes that Python's logging gives a record; all others are fields of a program, or of minray."""
TEXT_FORMAT = "%(asctime)s\t%(levelname)s %(filename)s:%(lineno)s -- %(message)s"
"""Ray's format."""


@dataclass
class LoggingConfig:
    """How the driver and the workers of a job log. Raises ValueError for an encoding, level or attribute that is none."""

    encoding: str = "TEXT"
    """"TEXT" or "JSON"."""
    log_level: str | int = "INFO"
    additional_log_standard_attrs: list[str] = field(default_factory=list)
    """Further attributes of Python's records that are shown, such as "name" or "funcName"."""

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise ValueError(f"Invalid encoding type: {self.encoding}. Valid encoding types are: {list(ENCODINGS)}")
        for attr in self.additional_log_standard_attrs:
            if attr not in STANDARD_ATTRS:
                raise ValueError(
                    f"Unknown python logging standard attribute: {attr}. The valid attributes are: {set(STANDARD_ATTRS)}"
                )
        try:
            logging.Handler().setLevel(self.log_level)
        except (TypeError, ValueError):
            levels = ", ".join(logging.getLevelNamesMapping())
            raise ValueError(f"log_level must be one of {levels}, or a number, not {self.log_level!r}") from None

    def encode(self) -> str:
        """Return the text that ``decode`` turns into an equal configuration, for the record of a job."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> LoggingConfig:
        return LoggingConfig(**json.loads(text))

    def apply(self, also: tuple[str, ...] = ()) -> None:
        """Set up the root logger of this process, and these loggers, which then do not propagate to it.

        A handler that an earlier configuration has set up is replaced; handlers of others stay.
        """
        handler = _JobHandler()
        handler.setLevel(self.log_level)
        formatter = _JsonFormatter() if self.encoding == "JSON" else _TextFormatter(TEXT_FORMAT)
        formatter.attrs = tuple(self.additional_log_standard_attrs)
        handler.setFormatter(formatter)
        handler.addFilter(_add_facts)
        root = logging.getLogger()
        root.handlers[:] = [one for one in root.handlers if not isinstance(one, _JobHandler)]
        root.addHandler(handler)
        root.setLevel(self.log_level)
        for name in also:
            logger = logging.getLogger(name)
            logger.handlers[:] = [handler]
            logger.setLevel(self.log_level)
            logger.propagate = False


class _JobHandler(logging.StreamHandler[Any]):
    """Writes to the standard error that this process has when the handler is made."""


class _FieldsFormatter(logging.Formatter):
    attrs: tuple[str, ...] = ()
    """Further attributes of Python's records that are shown."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields beyond the usual ones: chosen attributes, the program's own, and minray's."""
        found = {name: getattr(record, name, None) for name in self.attrs}
        found |= {name: value for name, value in record.__dict__.items() if name not in STANDARD_ATTRS}
        return {**found, "timestamp_ns": int(record.created * 1e9)}


class _JsonFormatter(_FieldsFormatter):
    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.getMessage(),
            "filename": record.filename,
            "lineno": record.lineno,
            "process": record.process,
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            shown["exc_text"] = record.exc_text
        return json.dumps({**shown, **self.fields(record)}, default=str)


class _TextFormatter(_FieldsFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{super().format(record)} {' '.join(f'{name}={value}' for name, value in self.fields(record).items())}"


_names: dict[str, str] = {}
"""Name of this process's actor, by its id, once it is known."""
_asking = threading.local()
"""``is_asking``: whether this thread asks for the actor's name right now. What is logged meanwhile must not ask again."""


def _add_facts(record: logging.LogRecord) -> bool:
    """Give a record the ids and names of where it was made, as far as they exist."""
    for name, value in _facts().items():
        if value:
            setattr(record, name, value)
    return True


def _facts() -> dict[str, str | None]:
    api = connected_api()
    if api is None:
        return {}
    context = RuntimeContext()
    facts: dict[str, str | None] = {
        "job_id": context.get_job_id(),
        "worker_id": context.get_worker_id(),
        "node_id": context.get_node_id(),
    }
    if not api.config.is_driver:
        actor_id = context.get_actor_id()
        facts |= {
            "actor_id": actor_id,
            "task_id": context.get_task_id(),
            "task_name": context.get_task_name(),
            "task_func_name": context.get_task_function_name(),
            "actor_name": _name_of(context, actor_id) if actor_id else None,
        }
    return facts


def _name_of(context: RuntimeContext, actor_id: str) -> str:
    """Return the name of this process's actor; empty if it has none, or cannot be asked now."""
    if actor_id not in _names and not getattr(_asking, "is_asking", False):
        _asking.is_asking = True
        try:
            _names[actor_id] = context.get_actor_name() or ""
        except Exception:  # On the loop's thread nothing can wait for an answer; the next record asks again.
            return ""
        finally:
            _asking.is_asking = False
    return _names.get(actor_id, "")
