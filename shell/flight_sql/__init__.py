"""What both ends of Arrow Flight SQL share, and the client of our own shell and connections."""

import os

# An engine forks only to start other programs: gRPC needn't be ready for more, and complains where it can't be. It
# reads this when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
