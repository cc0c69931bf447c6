"""The memory that a node shares: which object lies where in it, who reads it, and who waits for room. One arena per node."""
