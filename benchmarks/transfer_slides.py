"""The document "Data Transfer Speed on Ray": a model of 563 MB goes to actors on several machines, or on one.

``examples/model_from_s3.py`` shows the download of a model from S3.
"""

from __future__ import annotations

from benchmarks import model_transfer, slow_links
from benchmarks.document import DASK, MINRAY, RAY, Document, Part, Size, Table, Target

SYSTEMS = (MINRAY, RAY, DASK)


DOCUMENT = Document(
    "Data Transfer Speed on Ray",
    "Ankur Mohan, 2022: pods on EC2 instances, Ray before and after 2.0; a speech model of 563 MB",
    parts=(
        Part(
            slow_links.NAME,
            SYSTEMS,
            slow_links.measure,
            {Size.FULL: 120, Size.QUICK: 25, Size.TINY: 15},
            rounds=1,
            is_quick=False,
        ),
        Part(model_transfer.NAME, SYSTEMS, model_transfer.measure, {Size.FULL: 25, Size.QUICK: 6, Size.TINY: 5}),
    ),
    tables=(
        Table(
            slow_links.NAME,
            "Cases 1 and 2: a model to actors on machines of their own",
            "s",
            axis="process actors",
            original="Case 1: 4.0 s, 141 MB/s. Case 2 before Ray 2.0: nearly linear in the number of machines; "
            "with Ray 2.0: 10.5 s to five. The diamonds are those before 2.0. Links here carry 141 MB/s in each direction.",
            original_rows={"Ray before 2.0": {1: 5.8, 2: 10.8, 3: 15.23, 4: 19.79, 5: 25.8}},
            targets={"": Target(RAY, 1)},
        ),
        Table(
            slow_links.GROWTH,
            "The same, by the time to one actor",
            "times",
            axis="process actors",
            original="To five machines: 4.4 times before Ray 2.0; with 2.0, beside case 1, 2.6 times.",
            original_rows={"Ray before 2.0": {1: 1, 2: 1.86, 3: 2.63, 4: 3.41, 5: 4.45}},
            targets={"": Target(limit=1.5)},
        ),
        Table(
            model_transfer.NAME,
            "A model to actors on one machine",
            "s",
            original="Case 3: 3.24 s to one actor and 3.60 s to two. Case 4: 2.2 s and 2.4 s. "
            "Dereferenced too early, a whole run takes 35 s instead of 4.5 to 11 s.",
            original_rows={
                model_transfer.named(model_transfer.CASE_3, 1): {None: 3.24},
                model_transfer.named(model_transfer.CASE_3, 2): {None: 3.60},
                model_transfer.named(model_transfer.CASE_4, 1): {None: 2.2},
                model_transfer.named(model_transfer.CASE_4, 2): {None: 2.4},
            },
            targets={"": Target(RAY, 1)},
        ),
    ),
)
