"""Benchmarks of minray and its peers: ``python -m benchmarks``. See ``__main__``."""
