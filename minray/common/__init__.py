"""Basic types that every room may import: ids, resources, tasks, labels, constants."""
