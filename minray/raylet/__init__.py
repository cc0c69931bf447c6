"""The raylet: one process per node, which manages the node's workers, leases and bundles, and reports to the gcs."""
