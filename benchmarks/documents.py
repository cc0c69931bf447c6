"""All documents, in the order in which they are measured."""

from __future__ import annotations

from benchmarks import (
    dask_benchmarks,
    grpc_article,
    many_cores,
    memory_article,
    small_buffers,
    task_bench,
    transfer_slides,
)
from benchmarks.document import Document, Part

DOCUMENTS: list[Document] = [
    grpc_article.DOCUMENT,
    dask_benchmarks.DOCUMENT,
    memory_article.DOCUMENT,
    transfer_slides.DOCUMENT,
    small_buffers.DOCUMENT,
    task_bench.DOCUMENT,
    many_cores.DOCUMENT,
]
PARTS: dict[str, Part] = {part.name: part for document in DOCUMENTS for part in document.parts}
