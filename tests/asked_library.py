"""Helpers of `test_cli_options.py` and `test_cli_answers.py`."""

from typing import Any

from click.testing import CliRunner, Result

from metaprobe.cli import main

SAID = "what the checkpoint is"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


class Asked(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Stands in for a function of the library, and keeps what it was asked for."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.followed: list[str] = []
        """By what it could tell how far it is, call after call."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        for name in ("on_step", "watch"):
            if (told := named.pop(name, None)) is not None:
                self.followed.append(name)
                if callable(told):
                    told("a step")
        self.append((arguments, named))
        return self.answer


ANSWERS = ("--stage", "s", "--agent", "a")


FOLDS = ("--folds", 3, "--seed", 9)


SAME = {"stage": "s", "agent": "a", "folds": 3, "seed": 9}


def plain(value: Any) -> Any:
    """Texts and lists of them alike, however they were given."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else value
