"""Reads a server's settings from environment variables. Each is described once, as its option on the command line."""

from collections.abc import Mapping
from typing import Any

from metaprobe.api import Option

OFF_AND_ON = {"0": False, "false": False, "1": True, "true": True}
"""Maps the text of a variable to off or on."""


def from_environment(cls: type, environment: Mapping[str, str], error: type[Exception]) -> dict[str, Any]:
    """Returns the fields that environment variables set, by name. Raises `error` for a value of the wrong type.

    Args:
        cls: dataclass of the options.
        environment: the environment variables.
        error: class of the errors.
    """
    fields_set: dict[str, Any] = {}
    for option in Option.all_in(cls):
        if option.variable in environment:
            value = _option_value(option, environment[option.variable], error)
            fields_set[option.name] = (value,) if option.many else value
    return fields_set


def _option_value(option: Any, text: str, error: type[Exception]) -> Any:
    if option.scalar is bool:
        if text.lower() not in OFF_AND_ON:
            raise error(f"{option.variable} is {text!r}; expected one of {', '.join(OFF_AND_ON)}")
        return OFF_AND_ON[text.lower()]
    if option.choices and text not in option.choices:
        raise error(f"{option.variable} is {text!r}; expected one of {', '.join(option.choices)}")
    if option.scalar not in (int, float):
        return text  # an empty digest is a wrong one, and refused where it is compared
    if option.default is None and not text.strip():
        return None
    try:
        return option.scalar(text)
    except ValueError:
        raise error(f"{option.variable} is {text!r}; expected a number, such as 0.3") from None
