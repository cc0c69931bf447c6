"""The one thing that setup.cfg cannot say: a package index shows the README without the files that its links name.

Relative links are made absolute with the project's ``url`` in setup.cfg; without a ``url`` they stay as they are.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def readme_with_absolute_links() -> str:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    url = config.get("metadata", "url", fallback="")
    text = (ROOT / "README.md").read_text()
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/", text) if url else text


setup(long_description=readme_with_absolute_links())
