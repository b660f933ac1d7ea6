"""`python -m flows.cli`: the command line without the installed script `loam`."""

import sys

from flows.cli import main

sys.exit(main())
