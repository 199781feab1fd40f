"""How often answers of a run are right, kept apart from what one answer shows: the part of a contract that a caller
may know more of than the checkpoint."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.manifest import printable

CONTRACT = "base_rates"
"""The contract's key."""
SEPARATOR = "|"
"""Between model, task and way of asking in the name of a run."""
SHOWN = 5
CERTAIN = 1e-6
"""Probabilities beyond it are moved to it before their log-odds are taken; a graph gives float32."""


def name_of_run(model: str, task: str = "", variant: str = "") -> str:
    """Returns the name of a run; without a way of asking or a task, of whatever the model answers in any."""
    return SEPARATOR.join((model, task, variant))


@dataclass(frozen=True, slots=True)
class BaseRates:
    """The base rates of the runs that a checkpoint was trained on, for heads that are probabilities."""

    between: Mapping[str, float]
    """Head -> how much the runs' base rates differ: standard deviation in log-odds."""
    runs: Mapping[str, Mapping[str, float]]
    """Run -> head -> what is added to the log-odds that the graph gives, which are those of an average run."""
    average: Mapping[str, float]
    """Head -> its mean value over the training answers."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """Head -> how much the runs' own scales of the log-odds differ: standard deviation around 1."""

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any], heads: Collection[str]) -> "BaseRates | None":
        """Returns what the contract states; None where it states nothing, as of a checkpoint of one run.

        `heads`: the checkpoint's probabilities. Raises `ContractMismatch` where it is no statement of these.
        """
        stated = contract.get(CONTRACT)
        if stated is None:
            return None
        try:
            between, average, scale = (
                {str(n): _finite(v) for n, v in of.items()}
                for of in (stated["between"], stated["average"], stated.get("scale", {}))
            )
            runs = {str(run): {str(n): _finite(v) for n, v in of.items()} for run, of in stated["runs"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractMismatch(f"the contract's {CONTRACT} cannot be read ({error!r}); train it again") from error
        if other := sorted({name for of in (between, average, *runs.values()) for name in of} - set(heads)):
            raise ContractMismatch(
                f"the contract's {CONTRACT} name {other[0]!r}; expected heads that are probabilities, which "
                f"are {', '.join(heads) or 'none'}; train it again"
            )
        return cls(between, runs, average, scale)

    def named(self, run: str) -> Mapping[str, float]:
        """Returns the shifts of the run of this name. Raises `ContractMismatch`, with the names, for another one."""
        if run not in self.runs:
            names = sorted(self.runs)
            known = "; ".join(printable(name) for name in names[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ContractMismatch(
                f"no run is called {run!r}; a run is named MODEL{SEPARATOR}TASK{SEPARATOR}VARIANT, and this checkpoint "
                f"knows {known + more or 'none: adapt it with labelled answers of yours'}"
            )
        return self.runs[run]

    def of_run(self, run: str) -> Mapping[str, float] | None:
        """Returns the shifts of the run of this name, or of a run of its model whose name leaves open what this one
        says: the way of asking, or the task too. None where there is none of these."""
        model, task, _ = (*run.split(SEPARATOR, 2), "", "")[:3]
        names = run, name_of_run(model, task), name_of_run(model)
        return next((self.runs[name] for name in names if name in self.runs), None)

    @property
    def of_strangers(self) -> bool:
        """Whether the checkpoint was made for runs that it does not know: it names none, though it saw several."""
        return not self.runs

    def of_model(self, model: str | None) -> Mapping[str, float] | None:
        """Returns the shifts of the only run of this model; None where there are several, or none."""
        known = [shifts for run, shifts in self.runs.items() if run.partition(SEPARATOR)[0] == model]
        return known[0] if len(known) == 1 else None

    def add_to(self, heads: dict[str, float], run: Mapping[str, float] | None, model: str | None) -> bool:
        """Returns whether the run is known, and if it is, shifts the heads' values: the run that was named, or else
        the only one of the model."""
        shifts = self.of_model(model) if run is None else run
        for name, shift in (shifts or {}).items():
            heads[name] = shifted(heads[name], shift)
        return shifts is not None

    def unknown(self, head: str | None) -> str:
        """Returns what a verdict must say where the run is not known."""
        average = self.average.get(head or "")
        right = "" if average is None else f" ({average:.0%} right)"
        remedy = "name the run" if self.runs else "adapt the checkpoint with labelled answers"
        return (
            f"how often answers of this run are right is not known: the score assumes the average of the training runs"
            f"{right}, and orders answers of one run only; {remedy}"
        )


def shifted(probability: float, shift: float) -> float:
    """Returns the probability whose log-odds are greater by `shift`."""
    if not shift:
        return probability
    p = min(max(probability, CERTAIN), 1 - CERTAIN)
    return 1 / (1 + math.exp(-(math.log(p / (1 - p)) + shift)))


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)
