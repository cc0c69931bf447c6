"""The version is said once, in minray/_version.py; setup.cfg reads it, and the changelog has a section for it."""

import configparser
from pathlib import Path

from setuptools.config.setupcfg import read_configuration

import minray

CHECKOUT = Path(__file__).resolve().parents[1]


def test_setup_reads_the_version_of_the_package() -> None:
    assert read_configuration(CHECKOUT / "setup.cfg")["metadata"]["version"] == minray.__version__
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    assert minray.__version__ not in setup["metadata"]["version"]


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert f"\n## [{minray.__version__}]" in (CHECKOUT / "CHANGELOG.md").read_text()
