"""Decisions that a program may replace: where tasks run, what is evicted and spilled, and from where objects come.

Ray: src/ray/raylet/scheduling/policy/ has such classes for scheduling alone, and programs cannot add one.

A policy is a class with one method. It gets a question, which is a record of plain data, and returns its answer. It is named
in ``_system_config``, and each raylet, core worker or gcs makes one of its own. docs/policy_lab.md shows how to write one.
"""

from __future__ import annotations

from minray.policies.protocols import (
    ARRIVED,
    SPILLED,
    WAITING,
    BundlePolicy,
    BundleQuestion,
    CandidateNode,
    EvictionPolicy,
    LargeArgument,
    LocalityPolicy,
    LocalityQuestion,
    PolicyHost,
    RequestState,
    SchedulingPolicy,
    SchedulingQuestion,
    SpillPolicy,
    StoredCopy,
    TransferPolicy,
    TransferQuestion,
)

__all__ = [
    "ARRIVED",
    "SPILLED",
    "WAITING",
    "LargeArgument",
    "BundlePolicy",
    "BundleQuestion",
    "StoredCopy",
    "EvictionPolicy",
    "LocalityPolicy",
    "LocalityQuestion",
    "CandidateNode",
    "PolicyHost",
    "RequestState",
    "SchedulingPolicy",
    "SchedulingQuestion",
    "SpillPolicy",
    "TransferPolicy",
    "TransferQuestion",
]
