"""Errors of decoding: what msgspec raises for bytes that are not what they should be.

Ray: the return value of ParseFromString in each service

A text that is not UTF-8 is a UnicodeDecodeError, and a value that is nested deeper than Python's recursion limit is a
RecursionError, also in a field that is unknown and skipped. Each place that decodes bytes of another process, or of a file,
catches all three.
"""

from __future__ import annotations

import msgspec

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
