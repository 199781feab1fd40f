"""Adds the documentation of a dataclass's fields to its docstring, for `help()`."""

import ast
import inspect
import itertools
import sys
import textwrap
from functools import cache
from typing import Any, TypeVar

from metaprobe.checkpoints.option_fields import described

T = TypeVar("T")


def explain_fields(cls: type[T]) -> type[T]:
    """A decorator for dataclasses: adds the documentation of the fields to the docstring of the class."""
    cls.__doc__ = _FieldDocs(cls.__doc__ or "", cls)  # type: ignore[assignment]
    return cls


class _FieldDocs:
    """A docstring that is completed when it is read, because completing it needs the source of the class."""

    def __init__(self, text: str, cls: type) -> None:
        self.text, self.cls = text, cls

    def __get__(self, instance: object, owner: type | None = None) -> str:
        return with_fields(self.text, self.cls)


def with_fields(text: str, cls: Any) -> str:
    """Returns the text, followed by a line for each documented field of the dataclass: its name and its docstring.

    If the source of the class is missing, as in a frozen program, it returns the text alone.
    """
    if not (docs := field_docs(cls)):
        return text
    lines = [textwrap.fill(f"- `{name}`: {text}", 110, subsequent_indent="  ") for name, text in docs.items()]
    return "\n".join([inspect.cleandoc(text), "", "Fields:", "", *lines])


def field_docs(cls: type) -> dict[str, str]:
    """Returns the documentation of the fields of a class and its bases, by field name, bases first.

    It is the help of an `Option`, followed by the string below the field.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        if not (hints := inspect.get_annotations(base)):
            continue
        texts_below = _texts_below_fields(base.__module__).get(base.__qualname__)
        if texts_below is None:
            continue
        for name, hint in hints.items():
            described_field = described(name, hint)
            words = [described_field.option.help if described_field else "", texts_below.get(name, "")]
            if any(words):
                docs[name] = " ".join(filter(None, words))
    return docs


@cache
def _texts_below_fields(module: str) -> dict[str, dict[str, str]]:
    """Returns the string below each field, by class and field, for all classes of a module.

    Returns nothing if the module's source is missing. A module is parsed once, because its classes share the cost.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, ValueError):
        return {}
    texts: dict[str, dict[str, str]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                texts[f"{prefix}{statement.name}"] = _texts_by_field(statement.body)
                visit(statement.body, f"{prefix}{statement.name}.")
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(statement.body, f"{prefix}{statement.name}.<locals>.")

    visit(tree.body, "")
    return texts


def _texts_by_field(body: list[ast.stmt]) -> dict[str, str]:
    """Returns the string that follows each annotated field in the body of a class, by field name."""
    texts: dict[str, str] = {}
    for field, following in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts[field.target.id] = " ".join(text.value.split())
    return texts
