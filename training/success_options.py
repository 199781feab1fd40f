"""Options of `train success`."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from metaprobe.checkpoints.option_fields import Option
from metaprobe.training.training_options import LineOptions, ReplaceOptions, RunOptions, WrongOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessOptions(RunOptions, ReplaceOptions, LineOptions):
    """Holds the options of `train_success`."""

    read_by: Annotated[
        str,
        Option(
            "Causal model whose prompt states are tried after the words: `embedded`, an embedded name, a folder "
            "or a hub id. The checkpoint holds its lower layers. Needs the extra train once, and tokenizers to run.",
            metavar="MODEL",
        ),
    ] = ""
    candidate: Annotated[
        Sequence[str],
        Option("Only these candidates; for a table, the columns of their scores; repeatable.  [default: all]"),
    ] = ()
    labels_until: Annotated[
        str,
        Option(
            "Date of each candidate's newest label, as 2026-11-29; by default the newest `answered` of its outcomes, "
            "without which the age of its labels is unknown.",
            metavar="DATE",
        ),
    ] = ""
    version: Annotated[
        Sequence[str],
        Option("CANDIDATE=VERSION: the version of a candidate that gave the labelled answers; repeatable."),
    ] = ()

    def __post_init__(self) -> None:
        if self.labels_until:
            try:
                newest = datetime.date.fromisoformat(self.labels_until)
            except ValueError as error:
                raise WrongOptions(f"labels_until is {self.labels_until!r}; expected a date as 2026-11-29") from error
            # It may be tomorrow already where the labels were given.
            if newest > datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1):
                raise WrongOptions(
                    f"labels_until is {self.labels_until}, a day to come; expected that of the newest label"
                )
        self.versions()

    def versions(self) -> dict[str, str]:
        """Returns candidate -> version. Raises `WrongOptions` for an option of another form."""
        version_of = {}
        for written in self.version:
            name, _, version = written.partition("=")
            if not name or not version:
                raise WrongOptions(f"version {written!r}: expected CANDIDATE=VERSION")
            version_of[name] = version
        return version_of
