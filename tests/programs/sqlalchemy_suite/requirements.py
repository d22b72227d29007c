"""What of SQLAlchemy's tests of dialects Penstock doesn't do, and why."""

from __future__ import annotations

from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

#: Requirements that SQLAlchemy takes for granted; those that it doesn't are closed by themselves.
NOT_MET = {
    "there are no temporary tables": ("temporary_tables", "temp_table_reflection"),
    "there are no foreign keys": (
        "foreign_keys", "foreign_key_ddl", "self_referential_foreign_keys", "foreign_key_constraint_reflection",
        "recursive_fk_cascade", "on_update_cascade"),
    "there are no indexes and no constraints but the key": (
        "index_reflection", "unique_constraint_reflection", "reflect_indexes_with_ascdesc", "indexes_with_ascdesc",
        "duplicate_key_raises_integrity_error"),
    "a row with the key of another updates it, there is no UPDATE": (
        "sane_rowcount", "update_where_target_in_subquery"),
    "there is no type for times of day": ("time", "time_microseconds", "time_implicit_bound"),
    "no column is numbered by itself": (
        "autoincrement_insert", "autoincrement_without_sequence", "empty_inserts", "implements_get_lastrowid"),
    "LIKE takes a constant pattern, and has no ESCAPE": ("like_escapes",),
    "there is no IS DISTINCT FROM": ("supports_is_distinct_from",),
    "LIMIT and OFFSET take numbers": ("sql_expression_limit_offset",),
    "the time that each table of the tests is given first is its key, not theirs": (
        "primary_key_constraint_reflection", "insert_from_select"),
}

#: Tests without a requirement of their own, by class or by class and name.
SKIPPED = {
    "columns but the key may be NULL, and the key of its tables is the time that they are given": (
        "ComponentReflectionTest::test_get_multi_columns", "ComponentReflectionTestExtra::test_nullable_reflection"),
    "CHAR is VARCHAR": ("ComponentReflectionTestExtra::test_string_length_reflection[CHAR",),
    "no column is numbered by itself": ("ComponentReflectionTest::test_autoincrement_col",),
    "a join goes by time, or looks up what is equal": ("JoinTest",),
    "there is no UPDATE": ("ReturningGuardsTest::test_update",),
    "subqueries are allowed in FROM only": (
        "ExistsTest", "FetchLimitOffsetTest::test_limit_render_multiple_times",
        "RowFetchTest::test_row_w_scalar_select"),
    "the first column of a table is a time": (
        "TableViaSelectTest::test_without_metadata[plain", "TableViaSelectTest::test_without_metadata[use_schema0"),
    "LIKE takes a constant pattern": ("LikeFunctionsTest",),
    "VALUES take constants": ("CastTypeDecoratorTest::test_special_type",),
    "there is no nullif": ("TrueDivTest::test_truediv_divisor",),
    "it compares texts of SQL without quotes": ("DistinctOnTest", "PostCompileParamsTest"),
    "it selects *, and sees the time that each table of the tests is given": ("NameDenormalizeTest",),
    "it makes indexes with names that nobody else has": ("LongNameBlowoutTest",),
}


class Requirements(SuiteRequirements):
    """SQLAlchemy's requirements, with those closed that aren't met, and open that it takes for granted of nobody."""

    views = property(lambda self: exclusions.open())


def _closed(reason: str) -> Any:
    return property(lambda self: exclusions.skip_if(lambda config: True, reason))


for _reason, _names in NOT_MET.items():
    for _name in _names:
        setattr(Requirements, _name, _closed(_reason))
