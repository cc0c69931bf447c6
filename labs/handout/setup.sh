#!/usr/bin/env bash
# Runs once, when Gradescope builds the image of the course. The images differ in the Python that they have.
set -e
apt-get update
apt-get install -y python3.12 python3.12-venv || apt-get install -y python3.11 python3.11-venv
python=$(command -v python3.12 || command -v python3.11)
"$python" -m venv /autograder/venv
/autograder/venv/bin/python -m pip install --editable "/autograder/source/@LAB@[labs]"
