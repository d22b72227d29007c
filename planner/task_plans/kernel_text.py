"""Kernels as text, for EXPLAIN (SQL)."""

from __future__ import annotations

from penstock.planner.task_plans.kernel_spec import Expr, FieldKernel, FinalKernel, PickKernel, SourceKernel

_BETWEEN = {"+": "+", "-": "-", "*": "*", "/": "/", "=": "=", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
            "and": "and", "or": "or"}


def source_kernel_lines(kernel: SourceKernel) -> list[str]:
    """Returns what a source task computes with NumPy, a line for each step."""
    lines = []
    if kernel.condition is not None:
        lines.append(f"keep rows where {expression_text(kernel.condition)}")
    if kernel.values is not None:
        lines.append(f"groups of values: {kernel.values.sql}")
    else:
        lines.append("group 0" if kernel.groups_sql is None else f"groups of tables: {kernel.groups_sql}")
    if kernel.panes is not None:
        panes = kernel.panes
        lines.append(f"windows of {panes.width} units, one every {panes.step} from {panes.offset}, "
                     f"in panes of {panes.pane}" if panes.pane else "one window of all time")
    lines += [f"mark {name}: {expression_text(mark)}" for name, mark in kernel.marks]
    if kernel.mark_condition is not None:
        lines.append(f"keep rows where {expression_text(kernel.mark_condition)}")
    lines += [_aggregate(aggregate) for aggregate in kernel.aggregates]
    return [*lines, *(f"column {expression_text(projection)}" for projection in kernel.projections)]


def final_kernel_lines(kernel: FinalKernel) -> list[str]:
    """Returns what an agg task computes with NumPy of the state of its windows, a line for each step."""
    end = [] if kernel.end is None else [f"_wend: {expression_text(kernel.end)}"]
    return [f"no result where {expression_text(kernel.nothing)}", *end,
            *(f"r{place}: {expression_text(result)}" for place, result in enumerate(kernel.results))]


def expression_text(expression: Expr) -> str:
    """Returns an expression; what isn't an operator is written as a call."""
    args = [expression_text(arg) for arg in expression.args]
    match expression.op:
        case "column":
            return str(expression.value)
        case "constant":
            return repr(expression.value)
        case "null":
            return f"({args[0]} is null)"
        case "not":
            return f"(not {args[0]})"
        case "neg":
            return f"(-{args[0]})"
        case "left":
            return f"left({args[0]}, {expression.value})"
        case "cast":
            return f"{expression.type.value}({args[0]})"
        case "case":
            branches = "".join(f" when {test} then {value}" for test, value in zip(args[::2], args[1::2], strict=False))
            return f"case{branches}{f' else {args[-1]}' if len(args) % 2 else ''} end"
        case op if op in _BETWEEN:
            return f"({f' {_BETWEEN[op]} '.join(args)})"
    return f"{expression.op}({', '.join(args)})"


def _aggregate(aggregate: FieldKernel | PickKernel) -> str:
    if isinstance(aggregate, PickKernel):
        order = ", ".join(f"{'least' if least else 'greatest'} {expression_text(aggregate.fields[place])}"
                          for place, least in aggregate.order)
        among = "" if aggregate.present is None else f" with {expression_text(aggregate.present)}"
        return f"take ({', '.join(map(expression_text, aggregate.fields))}) of the row{among} by {order}"
    of = "" if aggregate.value is None else f" of {expression_text(aggregate.value)}"
    return aggregate.function + of
