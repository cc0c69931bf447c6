"""The object store of a node: one shared arena, the objects in it, their readers, and the requests that wait for room."""
