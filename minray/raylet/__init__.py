"""The node: workers, leases, and what the cluster is told about them. One raylet process per node."""
