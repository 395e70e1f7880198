"""`python -m shoal.runtimes.keeper`: the keeper's process."""

from __future__ import annotations

import sys

from shoal.runtimes.keeper.server import main

main(sys.argv[1:])
