"""How a plan calls users' functions: plain data that whoever runs the SQL makes known to DuckDB first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.sql.schema import UserFunction
from penstock.sql.types import DataType, Kind

Step = Literal["scalar", "aggregate", "partial", "finish"]


@dataclass(frozen=True, slots=True)
class UserCall:
    """A function that the plan's SQL calls as `name`.

    scalar: `arguments` to `result`, row by row. aggregate: a list of rows (structs of the `arguments`) to the
    `result`. partial: such a list to a state (BLOB). finish: a state to the `result`; NULL stays NULL.
    TIMESTAMP arguments and results are BIGINT in the SQL and timestamps of the type's precision in Python.
    """

    step: Step
    function: UserFunction
    arguments: tuple[DataType, ...]
    result: DataType

    @property
    def name(self) -> str:
        """The name in the SQL, not quoted: different for different steps and types."""
        return f"udf:{self.step}:{self.signature}"

    @property
    def signature(self) -> str:
        """The function with the types that it is called with, as messages show it."""
        types = ", ".join(f"{type_.sql()} {type_.precision}" if type_.kind is Kind.TIMESTAMP else type_.sql()
                          for type_ in self.arguments)
        return f"{self.function.name}({types})"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The DuckDB types of what the SQL passes."""
        types = [type_.duckdb() for type_ in self.arguments]
        if self.step == "scalar":
            return tuple(types)
        if self.step == "finish":
            return ("BLOB",)
        return (f"STRUCT({', '.join(f'a{n} {name}' for n, name in enumerate(types))})[]",)

    @property
    def returns(self) -> str:
        """The DuckDB type of what the SQL gets back."""
        return "BLOB" if self.step == "partial" else self.result.duckdb()
