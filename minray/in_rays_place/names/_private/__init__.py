"""Private modules of Ray that programs import by habit, as far as minray has what they mean.

Ray: python/ray/_private/

Ray imports these modules itself, so ``import ray; ray._private.services`` works. Only ``test_utils`` is imported by name.
"""

from minray.in_rays_place.names._private import internal_api, ray_constants, services, state, utils, worker

__all__ = ["internal_api", "ray_constants", "services", "state", "utils", "worker"]
