"""Sets up SQLAlchemy's own tests of dialects for `penstock://`; run by tests/shell/test_sqlalchemy_suite.py."""

import pytest
from sqlalchemy.dialects import registry

for name in ("penstock_keyed", "penstock_keyed.penstock"):
    registry.register(name, "programs.sqlalchemy_suite.keyed_dialect", "KeyedDialect")
pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from programs.sqlalchemy_suite.requirements import SKIPPED  # noqa: E402
from sqlalchemy.testing.plugin import pytestplugin  # noqa: E402
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403


def pytest_collection_modifyitems(session, config, items):  # type: ignore[no-untyped-def]
    """Marks what Penstock doesn't do as skipped, with the reason."""
    pytestplugin.pytest_collection_modifyitems(session, config, items)
    reasons = {name: reason for reason, names in SKIPPED.items() for name in names}
    for item in items:
        group = item.cls.__name__.partition("_")[0] if item.cls else ""
        reason = next((reasons[name] for name in reasons
                       if f"{group}::{item.name}".startswith(name if "::" in name else f"{name}::")), None)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
