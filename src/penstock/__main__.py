"""`python -m penstock` is the command `penstock`."""

from __future__ import annotations

import sys

from penstock.shell.main import main

sys.exit(main())
