"""Reads the settings of a server from environment variables, each described once, as its option on the command line."""

from collections.abc import Mapping
from typing import Any

from metaprobe.api import options_of

OFF_AND_ON = {"0": False, "false": False, "1": True, "true": True}
"""Texts of a variable that turns something on or off."""


def from_environment(cls: type, environment: Mapping[str, str], error: type[Exception]) -> dict[str, Any]:
    """Returns the fields that environment variables give, by name. Raises `error` for a value of the wrong type."""
    given: dict[str, Any] = {}
    for one in options_of(cls):
        if one.variable in environment:
            value = _value(one, environment[one.variable], error)
            given[one.name] = (value,) if one.many else value
    return given


def _value(one: Any, text: str, error: type[Exception]) -> Any:
    if one.scalar is bool:
        if text.lower() not in OFF_AND_ON:
            raise error(f"{one.variable} is {text!r}; expected one of {', '.join(OFF_AND_ON)}")
        return OFF_AND_ON[text.lower()]
    if one.choices and text not in one.choices:
        raise error(f"{one.variable} is {text!r}; expected one of {', '.join(one.choices)}")
    if one.scalar not in (int, float):
        return text  # an empty digest is a wrong one, and refused where it is compared
    if one.default is None and not text.strip():
        return None
    try:
        return one.scalar(text)
    except ValueError:
        raise error(f"{one.variable} is {text!r}; expected a number, such as 0.3") from None
