"""How our objects show themselves: their fields in `help()`, and a small table in a notebook."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TypeVar

T = TypeVar("T")

_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;border:0;background:transparent;color:inherit"
"""Colours are those of the notebook, dark or light."""


def html_table(title: str, rows: Iterable[Sequence[object]], *, head: Sequence[str] = ()) -> str:
    """Returns a table for a notebook's `_repr_html_`; title and cells are escaped."""
    lines = [*([_row("th", head)] if head else []), *(_row("td", row) for row in rows)]
    return (
        f'<div><b>{escape(title)}</b><table style="border-collapse:collapse;background:transparent;color:inherit">'
        f"{''.join(lines)}</table></div>"
    )


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(str(cell))}</{tag}>' for cell in cells) + "</tr>"


def explain_fields(cls: type[T]) -> type[T]:
    """A decorator for dataclasses: returns the class, whose docstring then explains its fields, also in `help()`."""
    cls.__doc__ = _FieldDocs(cls.__doc__ or "", cls)  # type: ignore[assignment]
    return cls


class _FieldDocs:
    """A docstring that is completed when somebody reads it, for it takes the source of the class."""

    def __init__(self, text: str, cls: type) -> None:
        self.text, self.cls = text, cls

    def __get__(self, instance: object, owner: type | None = None) -> str:
        return with_fields(self.text, self.cls)


def with_fields(text: str, cls: Any) -> str:
    """Returns the text, followed by a line for each documented field of the dataclass: its name and its docstring.

    Without the sources of the class, as in a frozen program, it is the text alone.
    """
    found = field_docs(cls)
    if not found:
        return text
    lines = [textwrap.fill(f"- `{name}`: {said}", 110, subsequent_indent="  ") for name, said in found.items()]
    return "\n".join([inspect.cleandoc(text), "", "Fields:", "", *lines])


def field_docs(cls: type) -> dict[str, str]:
    """Returns what the strings below the fields of a class and its bases say, by field, the bases' first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, ValueError):
            continue
        body = getattr(tree, "body", [])
        for field, said in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                documented = isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
                if documented and isinstance(said.value.value, str):
                    found[field.target.id] = " ".join(said.value.value.split())
    return found
