"""Constants of Ray that mean something here, and functions that read variables of the environment.

Ray: python/ray/_private/ray_constants.py, python/ray/_common/utils.py (env_integer, env_float, env_bool)

Constants of what minray does not have (a dashboard, Redis, an autoscaler) are left out.
"""

from __future__ import annotations

from minray.common.config import FUNCTION_SIZE_ERROR_THRESHOLD
from minray.common.ids import OBJECT_ID_BYTES
from minray.common.resources import UNIT
from minray.in_rays_place.names._common.utils import env_bool, env_float, env_integer

__all__ = ["FUNCTION_SIZE_ERROR_THRESHOLD", "env_bool", "env_float", "env_integer"]

ID_SIZE = OBJECT_ID_BYTES
"""Size in bytes of an object's id."""
MIN_RESOURCE_GRANULARITY = 1 / UNIT
"""Smallest amount of a resource that a task or actor can ask for."""
RAY_ADDRESS_ENVIRONMENT_VARIABLE = "RAY_ADDRESS"
"""Variable from which ``init`` takes the address; ``MINRAY_ADDRESS`` comes before it."""
LOGGER_FORMAT = "%(asctime)s\t%(levelname)s %(filename)s:%(lineno)s -- %(message)s"
"""Format of Ray's log lines, for programs that log in the same way."""
LOGGER_LEVEL = "info"
LOGGER_LEVEL_CHOICES = ["debug", "info", "warning", "error", "critical"]
