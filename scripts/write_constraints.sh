#!/usr/bin/env bash
# Pins every package that is installed in .venv now. Called by `make constraints`, after versions were changed on
# purpose and the tests passed with them.
set -euo pipefail
cd "$(dirname "$0")/.."
{
    echo "# Every package that the tests are known to pass with. Written by \`make constraints\`."
    .venv/bin/python -m pip --disable-pip-version-check freeze --exclude-editable
} >requirements/constraints.txt.part
if grep -nE ' @ |://|^-' requirements/constraints.txt.part; then
    echo "constraints: a package was not installed from an index; nothing was written" >&2
    rm requirements/constraints.txt.part
    exit 1
fi
mv requirements/constraints.txt.part requirements/constraints.txt
