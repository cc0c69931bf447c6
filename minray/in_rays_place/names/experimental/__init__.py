"""Parts of Ray's experimental package that minray has as modules for programs in Ray's place alone.

Ray: python/ray/experimental/

``ray.experimental`` itself is ``minray/experimental/``. Compiled graphs, channels and tensor transports are left out.
"""
