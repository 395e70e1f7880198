"""`python -m shoal.runtimes.guard`: a guard process."""

from __future__ import annotations

import sys

from shoal.runtimes.guard.process import main

main(sys.argv[1:])
