"""What is said about placement groups: by users to the gcs, and by the gcs to raylets.

Ray: src/ray/protobuf/gcs_service.proto (PlacementGroupInfoGcsService), node_manager.proto (PrepareBundleResources, ...)

Reserving takes two phases. ``PrepareBundles`` asks each node to put bundles aside; when all have, ``CommitBundles`` lets
work into them; if one has not, ``ReturnBundles`` takes them back everywhere (G104). All three name the *attempt*, a number
that grows with each try and with each gcs that is started: whatever of an older one comes late finds out that it is over.
"""

from __future__ import annotations

from minray.protocol.base import Done, Record, Request

PLACEMENT_GROUPS = "placement_groups"
"""The channel of all groups, with a ``PlacementGroupInfo`` by group id."""

GENERATION_SHIFT = 32
"""An attempt's upper bits count the gcs processes of a cluster, the lower ones the attempts of one."""


class Bundle(Record, frozen=True):
    """One bundle of a group, and where it is."""

    resources: dict[str, int]
    node_id: bytes = b""
    """Empty: nowhere (yet, or any more)."""
    attempt: int = 0
    """The attempt that has placed it there."""


class PlacementGroupInfo(Record, frozen=True):
    """A placement group, on channel PLACEMENT_GROUPS by its id, and as stored."""

    group_id: bytes
    name: str
    namespace: str
    strategy: str
    bundles: list[Bundle]
    state: str
    job_id: bytes
    """The creator's job, with which it ends."""
    detached: bool
    """True: it does not."""
    creator: bytes = b""
    """The detached actor that has made it, and with which it ends instead; else empty."""

    def on_node(self, node_id: bytes) -> list[tuple[int, int]]:
        """Index and attempt of the bundles that are there."""
        return [(index, bundle.attempt) for index, bundle in enumerate(self.bundles) if bundle.node_id == node_id]

    def nodes(self) -> list[bytes]:
        """All nodes that hold bundles of it."""
        return list(dict.fromkeys(bundle.node_id for bundle in self.bundles if bundle.node_id))

    def unplaced(self) -> dict[int, dict[str, int]]:
        """The bundles that are nowhere, by index."""
        return {index: bundle.resources for index, bundle in enumerate(self.bundles) if not bundle.node_id}


# --- to the gcs


class CreatePlacementGroupReply(Record, frozen=True):
    refused: str = ""
    """Why there will be no such group (its name is taken); empty if there is."""


class CreatePlacementGroup(Request[CreatePlacementGroupReply], frozen=True):
    """Idempotent by the group's id, which the creator has made."""

    group: PlacementGroupInfo


class RemovePlacementGroup(Request[Done], frozen=True):
    """Answered when it is decided; the work in the group is being ended then."""

    group_id: bytes


class PlacementGroupReply(Record, frozen=True):
    group: PlacementGroupInfo | None
    """None: unknown, or removed so long ago that nobody remembers."""
    explanation: str = ""
    """Why it is not ready, for people."""


class GetPlacementGroup(Request[PlacementGroupReply], frozen=True):
    """By its id, or if that is empty by its name."""

    group_id: bytes
    name: str = ""
    namespace: str = ""


class WaitPlacementGroup(Request[PlacementGroupReply], frozen=True):
    """Answered when the group is created or removed, at the latest after ``timeout_s``."""

    group_id: bytes
    timeout_s: float


# --- to raylets


class PrepareBundlesReply(Record, frozen=True):
    refused: str = ""
    """Why nothing was put aside; empty if everything was."""


class PrepareBundles(Request[PrepareBundlesReply], frozen=True):
    """Put these bundles aside, all of them or none."""

    group_id: bytes
    attempt: int
    bundles: dict[int, dict[str, int]]
    """By index."""


class CommitBundlesReply(Record, frozen=True):
    missing: list[int]
    """Bundles that are not here, and will not be: they have to be placed anew."""


class CommitBundles(Request[CommitBundlesReply], frozen=True):
    """Let work into bundles that were put aside; nothing changes for those where that was done."""

    group_id: bytes
    bundles: list[tuple[int, int]]
    """Index and attempt."""


class ReturnBundles(Request[Done], frozen=True):
    """The attempt has failed: what it, or one before it, has put aside here is free again, and it prepares nothing later."""

    group_id: bytes
    attempt: int


class RemoveBundles(Request[Done], frozen=True):
    """The group was removed: end the work in it here, then return its resources."""

    group_id: bytes


class ReleaseUnusedBundles(Request[Done], frozen=True):
    """A gcs was started again, and these are all the bundles that it knows to be here.

    What attempts of earlier gcs processes have left besides is returned.
    """

    generation: int
    in_use: list[tuple[bytes, int, int]]
    """Group, index, attempt."""
