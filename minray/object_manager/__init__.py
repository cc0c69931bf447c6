"""Transfer of objects from one node's store to another's."""
