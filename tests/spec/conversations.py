"""Conversations: groups of messages that belong together, at which the faults of a world can be aimed.

Every request of ``minray/protocol/`` is in one of them at least, with its reply. A test compares the lists. Faults that are
aimed at one conversation strike it often, although most messages of a run belong to others.
"""

from __future__ import annotations

from collections.abc import Mapping

OBJECT_MESSAGES = (
    "PinObjects", "ReleasePins", "FreeObjects", "GetObjectLocations", "UpdateObjectLocations", "ReadChunk", "PromoteObjects",
    "DeleteObjects", "EvictObjects",
)  # fmt: skip
MIXED: tuple[tuple[str, ...], ...] = (
    ("RequestWorkerLease", "ReturnWorkerLease", "CancelWorkerLease", "RevokeLeases"),
    ("PushTask", "CancelTask", "ReclaimTasks", "NotifyWorkerBlocked", "GetLeaseFailure", "CreateObject", "SealObject"),
    ("PushTask", "CancelTask", "ReportGeneratorItem", "WaitForReader", "CreateObject", "FreeObjects"),
    ("AddBorrower", "RemoveBorrower", "GetObject", "CheckTickets", *OBJECT_MESSAGES),
    ("RegisterActor", "CreateActor", "KillActor", "EndActor", "PushTask", "RequestWorkerLease", "ReturnWorkerLease"),
    ("PushActorTask", "CancelTask", "KillActor", "ExitActor", "AddBorrower", "RemoveBorrower"),
    ("RegisterWorker", "RegisterJob", "FinishJob", "ReportWorkerDeath", "KvPut", "KvGet", "Poll"),
)
"""Mixtures of conversations: requests that undo or depend on each other."""

CONVERSATIONS: Mapping[str, tuple[str, ...]] = {
    "lease": ("RequestWorkerLease", "ReturnWorkerLease", "CancelWorkerLease", "RevokeLeases", "ExplainLease"),
    "task": ("PushTask", "ReclaimTasks", "NotifyWorkerBlocked", "GetLeaseFailure", "Explain", "ExplainRun"),
    "cancellation": ("CancelTask", "CancelObject", "KillWorker"),
    "generator": ("PushTask", "ReportGeneratorItem", "WaitForReader"),
    "borrowing": ("AddBorrower", "RemoveBorrower", "CheckTickets"),
    "value": ("GetObject", "GetObjects", "GetObjectLocations", "UpdateObjectLocations", "ReadChunk", "OpenLanes"),
    "store": ("CreateObject", "SealObject", "AbortObject", "PinObjects", "ReleasePins", "GetObjectsInfo"),
    "freeing": ("FreeObjects", "PromoteObjects", "DeleteObjects", "EvictObjects", "LocalGC", "ReleasePins"),
    "birth of an actor": ("RegisterActor", "CreateActor", "GetActor", "GetNamedActor", "ListActors"),
    "call of an actor": ("PushActorTask", "GiveUpCalls", "ExplainCall", "ExplainActor"),
    "end of an actor": ("KillActor", "EndActor", "ExitActor", "ReportActorEnding", "ReportActorExit"),
    "birth of a placement group": (
        "CreatePlacementGroup", "PrepareBundles", "CommitBundles", "GetPlacementGroup", "WaitPlacementGroup",
    ),
    "end of a placement group": ("RemovePlacementGroup", "ReturnBundles", "RemoveBundles", "ReleaseUnusedBundles"),
    "worker": ("RegisterWorker", "ExitWorker", "ReportWorkerDeath", "GetWorkerDeath", "RayletEnds", "FlushLogs"),
    "job": ("RegisterDriver", "PrintLines", "RegisterJob", "FinishJob", "GetJob", "GetInternalConfig"),
    "node": ("RegisterNode", "UnregisterNode", "ReportResources", "CheckAlive", "CheckJoin", "Poll", "Shutdown"),
    "drain": ("DrainNode", "DrainRaylet", "LeaveNode", "PinObjects", "UpdateObjectLocations"),
    "key-value": ("KvPut", "KvGet", "KvDel", "KvKeys"),
    "introspection": (
        "GetCoreWorkerStats", "GetNodeStats", "GetProfileEvents", "GetStacks", "GetMetrics", "GetTasksInfo", "GetTaskEvents",
        "AddTaskEventData", "GetBreakpoints", "ListLogs", "ReadLog", "ReportMetrics", "GetEndedMetrics", "GetNodeMetrics",
        "GetGcsMetrics",
    ),
}  # fmt: skip
"""Name of a conversation -> its requests."""
