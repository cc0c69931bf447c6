"""Helpers that Ray's libraries share, of which programs import some.

Ray: python/ray/_common/

``test_utils`` has actors and waits for tests; ``utils`` has small conversions. Both are imported by name.
"""
