"""Labs: exercises in which a student writes one pure machine of minray, and a grader that judges it.

Ray: has no counterpart.

A lab is a folder with a ``lab.toml`` (``labs/lab.py``), a page and hints. The starter of a lab is the real file without the
bodies that the student writes (``labs/holes.py``), so it cannot drift from the code. It is made when the archive is made
(``labs/archive.py``) and never committed.

Rules
  * The grader runs the student's code in other processes, and imports none of minray itself.
  * A score depends on the submitted file alone: seeds, hash seed and the order of scenarios are fixed.
"""
