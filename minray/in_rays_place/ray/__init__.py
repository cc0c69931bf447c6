"""Lets ``import ray`` import minray under the name of Ray, when this folder's parent comes first in the module path.

Ray: python/ray/__init__.py

This module replaces itself in ``sys.modules`` by minray. ``minray/in_rays_place/finder.py`` finds the modules of Ray from
then on.
"""

from minray.in_rays_place import finder

finder.install()
