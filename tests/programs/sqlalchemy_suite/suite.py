"""SQLAlchemy's tests of dialects, all of them: what is skipped, `requirements.py` says, with reasons."""

from sqlalchemy.testing.suite import *  # noqa: F403
