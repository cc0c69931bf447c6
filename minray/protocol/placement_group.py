"""Messages about placement groups: from users to the gcs, and from the gcs to raylets.

Ray: src/ray/protobuf/gcs_service.proto (PlacementGroupInfoGcsService), node_manager.proto (PrepareBundleResources, ...)

Reserving takes two phases. ``PrepareBundles`` asks each node to reserve bundles. When all nodes have, ``CommitBundles``
opens the bundles for leases; if one has not, ``ReturnBundles`` takes them back everywhere (G104). All three name the
*attempt*, a number that grows with each try and with each restart of the gcs. It tells late messages of older attempts.
"""

from __future__ import annotations

from minray.protocol.base import Done, Finite, Record, Request

PLACEMENT_GROUPS = "placement_groups"
"""Channel of all groups, with a ``PlacementGroupInfo`` by group id."""

GENERATION_SHIFT = 32
"""Bits of an attempt's number that count the attempts of one gcs process; the bits above count the gcs processes."""


class Bundle(Record, frozen=True):
    """One bundle of a group, and the node that holds it."""

    resources: dict[str, int]
    node_id: bytes = b""
    """Node that holds the bundle; empty: none (yet, or any more)."""
    attempt: int = 0
    """Attempt that has placed the bundle there."""
    labels: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Terms that the bundle's node satisfies, see ``common.labels``."""

    def unplaced(self) -> Bundle:
        """Return the bundle without its node."""
        return Bundle(self.resources, labels=self.labels)


class PlacementGroupInfo(Record, frozen=True):
    """A placement group, as it is stored, and published on channel PLACEMENT_GROUPS by its id."""

    group_id: bytes
    name: str
    namespace: str
    strategy: str
    bundles: list[Bundle]
    state: str
    job_id: bytes
    """Job of the creator; the group ends with it unless it is detached."""
    detached: bool
    """Whether the group outlives its job."""
    creator: bytes = b""
    """Detached actor that created the group, which then ends with that actor instead; else empty."""

    def on_node(self, node_id: bytes) -> list[tuple[int, int]]:
        """Return index and attempt of the bundles that a node holds."""
        return [(index, bundle.attempt) for index, bundle in enumerate(self.bundles) if bundle.node_id == node_id]

    def nodes(self) -> list[bytes]:
        """Return all nodes that hold bundles of the group."""
        return list(dict.fromkeys(bundle.node_id for bundle in self.bundles if bundle.node_id))

    def unplaced(self) -> dict[int, dict[str, int]]:
        """Return the resources of the bundles that no node holds, by index."""
        return {index: bundle.resources for index, bundle in enumerate(self.bundles) if not bundle.node_id}


# --- to the gcs


class CreatePlacementGroupReply(Record, frozen=True):
    refused: str = ""
    """Reason why the group is not created (its name is taken); empty if it is."""


class CreatePlacementGroup(Request[CreatePlacementGroupReply], frozen=True):
    """Creates a group; idempotent by the group's id, which the creator has made."""

    group: PlacementGroupInfo


class RemovePlacementGroup(Request[Done], frozen=True):
    """Removes a group; answered when that is decided, while the work in the group is being ended."""

    group_id: bytes


class PlacementGroupReply(Record, frozen=True):
    group: PlacementGroupInfo | None
    """State of the group; None: the gcs does not know it, or has dropped it since its removal."""
    explanation: str = ""
    """Reason why the group is not ready, for users."""


class GetPlacementGroup(Request[PlacementGroupReply], frozen=True):
    """Asks for a group by its id, or, if that is empty, by its name."""

    group_id: bytes
    name: str = ""
    namespace: str = ""


class WaitPlacementGroup(Request[PlacementGroupReply], frozen=True):
    """Waits for a group: answered when it is created or removed, at the latest after ``timeout_s``."""

    group_id: bytes
    timeout_s: Finite


# --- to raylets


class PrepareBundlesReply(Record, frozen=True):
    refused: str = ""
    """Reason why no bundle was reserved; empty if all were."""


class PrepareBundles(Request[PrepareBundlesReply], frozen=True):
    """Reserves these bundles on a node, all of them or none."""

    group_id: bytes
    attempt: int
    bundles: dict[int, dict[str, int]]
    """Resources of the bundles by index."""


class CommitBundlesReply(Record, frozen=True):
    missing: list[int]
    """Indices of bundles that are not here and will not be; the gcs has to place them anew."""


class CommitBundles(Request[CommitBundlesReply], frozen=True):
    """Opens reserved bundles for leases; nothing changes for bundles that are open already."""

    group_id: bytes
    bundles: list[tuple[int, int]]
    """Index and attempt of each bundle."""


class ReturnBundles(Request[Done], frozen=True):
    """Returns what a failed attempt, or an earlier one, has reserved on a node; a late PrepareBundles of it is refused."""

    group_id: bytes
    attempt: int


class RemoveBundles(Request[Done], frozen=True):
    """Ends the work of a removed group on a node, then returns the group's resources."""

    group_id: bytes


class ReleaseUnusedBundles(Request[Done], frozen=True):
    """From a restarted gcs: names all the bundles that it knows to be on a node.

    The node returns the other bundles that attempts of earlier gcs processes have left.
    """

    generation: int
    in_use: list[tuple[bytes, int, int]]
    """Group id, index and attempt of each bundle."""
