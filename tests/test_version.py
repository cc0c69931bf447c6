"""One version, said in two places."""

import configparser
from pathlib import Path

import minray


def test_setup_names_the_version_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    assert setup["metadata"]["version"] == minray.__version__
