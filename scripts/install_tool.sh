#!/usr/bin/env bash
# install_tool.sh v1: install bnn-vnnlib into a virtual environment beside this script.
# Needs Python 3.11 or later with venv and pip; PYTHON names another interpreter than python3.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/instance.sh"
require_version "${1-}"

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    complain "Python 3.11 or later is needed; set PYTHON to one"
    exit 1
fi
"$python" -m venv "$here/.venv"
"$here/.venv/bin/python" -m pip install --quiet "$here/.."
"$here/.venv/bin/bnn-vnnlib" --version
