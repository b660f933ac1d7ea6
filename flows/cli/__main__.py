"""Runs the command line as `python -m flows.cli`, without the installed script `loam`."""

import sys

from flows.cli import main

sys.exit(main())
