"""Adds the documentation of a dataclass's fields to its docstring, for `help()`."""

import ast
import inspect
import itertools
import textwrap
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
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, ValueError):
            continue
        body = getattr(tree, "body", [])
        below: dict[str, str] = {}
        for field, following in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                if documented and isinstance(following.value.value, str):
                    below[field.target.id] = " ".join(following.value.value.split())
        for name, hint in inspect.get_annotations(base).items():
            described_field = described(name, hint)
            words = [described_field.option.help if described_field else "", below.get(name, "")]
            if any(words):
                docs[name] = " ".join(filter(None, words))
    return docs
