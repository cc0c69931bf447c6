"""The movers: objects from one node's store to another's."""
