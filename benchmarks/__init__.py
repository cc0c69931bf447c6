"""Measurements beside the peers: ``python -m benchmarks``. See ``__main__``."""
