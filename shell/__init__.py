"""How people reach Penstock: the command line, output formats, and the DB-API `connect()`."""

import os

# An engine forks only to start other programs: gRPC needn't be ready for more, and complains where it can't be. It
# reads this when it is loaded, which only the rooms of this part do.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# What goes wrong in a call or at a port, its statuses and exceptions say, too; lines of its own are for its developers.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
