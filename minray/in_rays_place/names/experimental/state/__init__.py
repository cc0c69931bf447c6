"""The state API under its name before Ray 2.7.

Ray: python/ray/experimental/state/

``ray.util.state`` has it now.
"""
