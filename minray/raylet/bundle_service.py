"""The raylet's service for placement groups: it holds their bundles, and ends the leases of removed groups.

Ray: src/ray/raylet/node_manager.cc (HandlePrepareBundleResources, HandleCommitBundleResources, HandleCancelResourceReserve,
HandleReleaseUnusedBundles)

``PlacementGroupResourceManager`` holds the bundles, and the lease broker knows the leases in them. This class connects both
with the gcs. A lease in a group may be requested before any node holds its bundles, and waits here as infeasible. So from
the first such request on, the node follows the gcs's channel of groups. When a group is removed, its requests end wherever
they wait. If the channel has not named a group, the gcs is asked; if the gcs does not know it, it was removed long ago.

A draining node follows the channel for the groups that it has bundles of: the gcs places these anew, and does not tell this
node when they are removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.platform.base import Buffer, Platform, PlatformError
from minray.protocol.base import DONE, Done, decode
from minray.protocol.placement_group import (
    PLACEMENT_GROUPS,
    CommitBundles,
    CommitBundlesReply,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    PrepareBundles,
    PrepareBundlesReply,
    ReleaseUnusedBundles,
    RemoveBundles,
    ReturnBundles,
)
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.placement_group_resource_manager import PlacementGroupResourceManager
from minray.rpc.connection import Peer
from minray.rpc.pubsub import Subscription
from minray.rpc.service import Call

REMOVED = "REMOVED"
"""State of a removed group, in which nothing may run any more."""


class BundleService:
    """Serves the messages about bundles, and follows the states of all groups."""

    def __init__(self, platform: Platform, gcs: Peer, broker: LeaseBroker) -> None:
        self._gcs = gcs
        self._broker = broker
        self.bundles = PlacementGroupResourceManager(broker.local.resources, platform.record)
        self._known: dict[bytes, None] = {}
        """Groups that the channel has named and that are not removed."""
        self._asked: dict[bytes, None] = {}
        """Groups about which the gcs was asked and has not answered yet."""
        self._subscription: Subscription | None = None

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    # --- Bundles

    def handle_PrepareBundles(self, request: PrepareBundles, call: Call) -> PrepareBundlesReply:
        if self._broker.leaving:
            return PrepareBundlesReply("this node is to leave the cluster")
        refused = self.bundles.prepare(request.group_id, request.attempt, request.bundles)
        self._broker.scheduler.advance()
        return PrepareBundlesReply(refused)

    def handle_CommitBundles(self, request: CommitBundles, call: Call) -> CommitBundlesReply:
        missing = self.bundles.commit(request.group_id, request.bundles)
        self._broker.nodes.must_retry_infeasible = True
        self._broker.scheduler.advance()
        return CommitBundlesReply(missing)

    def handle_ReturnBundles(self, request: ReturnBundles, call: Call) -> Done:
        self.bundles.give_back(request.group_id, request.attempt)
        self._broker.scheduler.advance()
        return DONE

    def handle_RemoveBundles(self, request: RemoveBundles, call: Call) -> Done:
        self._remove(request.group_id)
        return DONE

    def handle_ReleaseUnusedBundles(self, request: ReleaseUnusedBundles, call: Call) -> Done:
        removed = self.bundles.release_unused(request.generation, request.in_use)
        if not self._broker.leaving:  # On a draining node they were moved; the channel tells it which were removed.
            for group_id in removed:
                self._remove(group_id)
        self._broker.scheduler.advance()
        return DONE

    def on_leave(self) -> None:
        """Follow the groups of this node's bundles, because the node is drained."""
        for bundle in self.bundles.all():
            self.on_request(bundle.group_id)

    def _remove(self, group_id: bytes) -> None:
        self.bundles.remove(group_id)
        self._broker.on_group_removed(group_id)
        self._broker.scheduler.advance()

    def settle(self) -> None:
        """Release the bundles of removed groups whose last leases may have ended."""
        if self.bundles.settle(self._broker.table.works_in_group):
            self._broker.scheduler.advance()

    # --- Groups

    def on_request(self, group_id: bytes) -> None:
        """Follow the group of a lease request, and ask the gcs about it if it is unknown."""
        if self._subscription is None:
            self._subscription = Subscription(self._gcs, PLACEMENT_GROUPS, self._on_group)
            self._subscription.start()
        if group_id in self._known or group_id in self._asked:
            return
        self._asked[group_id] = None

        def on_answer(reply: PlacementGroupReply | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            del self._asked[group_id]
            if reply is not None and (reply.group is None or reply.group.state == REMOVED):
                self._remove(group_id)

        self._gcs.send(GetPlacementGroup(group_id), on_answer)

    def _on_group(self, key: bytes, value: bytes | None) -> None:
        if value is not None and decode(PlacementGroupInfo, value).state != REMOVED:
            self._known[key] = None
        else:
            self._known.pop(key, None)
            self._remove(key)
