"""Compares a response with the runs that a checkpoint was trained on: their models, modes and base rates.

A response of another model or log-probability mode is refused, or scored with a warning, as the caller chose
(`mismatch`).

The base rate of a run is how often its answers are right (`BaseRates`). A graph scores an answer as one of an average
run. The base rate is kept apart from the graph, because a caller may know it better than the checkpoint.
"""

import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from metaprobe.checkpoints import ContractMismatch, Generator
from metaprobe.checkpoints.manifest import printable

OnMismatch = Literal["warn", "refuse", "ignore", "note"]
"""Handling of an answer of another model than in training.

`warn` warns, scores the answer, and adds a note to the verdict's reason. `note` adds the note without a warning.
`refuse` raises `ContractMismatch`. `ignore` scores the answer without note or warning.
"""

MAY_MEAN_NOTHING = "the score may mean nothing"
ORDERS_ONLY = (
    "the score orders answers of one run, and is no calibrated probability: adapt the checkpoint with labelled answers"
)


def check_choice(on_mismatch: OnMismatch) -> OnMismatch:
    """Returns `on_mismatch`. Raises `ValueError` for an unknown choice, which would else count as `note`."""
    if on_mismatch not in get_args(OnMismatch):
        raise ValueError(f"on_mismatch is {on_mismatch!r}; expected one of {', '.join(get_args(OnMismatch))}")
    return on_mismatch


ITSELF = "the answering model itself"


def other_reader(reader: str, contract: Mapping[str, Any]) -> str:
    """Returns the model whose log-probabilities a checkpoint was trained on, if it is not `reader`; else empty.

    The answering model is returned as `ITSELF`. Revisions are not compared. `reader`: model that gave the
    log-probabilities to be scored, `NAME@REVISION`; empty for the model that answered.
    """
    stated_reader = contract.get("reader")
    name = stated_reader.get("model") if isinstance(stated_reader, Mapping) else ""
    trained_name = name if isinstance(name, str) else ""
    is_same = reader == trained_name or (trained_name and reader.startswith(f"{trained_name}@"))
    return "" if is_same else trained_name or ITSELF


def mismatch(
    generator: Generator | None,
    *,
    model: str,
    logprobs_mode: str = "unknown",
    contract: Mapping[str, Any] | None = None,
    reader: str = "",
    for_strangers: bool = False,
    on_mismatch: OnMismatch,
    stacklevel: int,
) -> str:
    """Returns how a response differs from the models and the mode that the checkpoint was trained on; else empty.

    Warns, or raises `ContractMismatch` with `on_mismatch="refuse"`. An unknown model (empty) or mode (`unknown`) counts
    as no difference.

    Args:
        generator: models that the checkpoint was trained on; None for any.
        model: model that gave the response.
        logprobs_mode: mode of the response's log-probabilities.
        contract: the checkpoint's contract; None if no log-probabilities are scored.
        reader: model that gave the log-probabilities, as for `other_reader`.
        for_strangers: whether the checkpoint was made for models that it was not trained on. For another model the
            warning then says that the score only orders answers of one run.
        on_mismatch: what to do about a difference.
        stacklevel: stack level of the warning.
    """
    if on_mismatch == "ignore":
        return ""
    notes = []
    other_model = generator is not None and model != "" and model not in generator.models
    if generator is not None and other_model:
        notes.append(f"response of {model!r}, checkpoint trained on {', '.join(generator.models)}")
    trained_mode = "unknown" if generator is None else generator.logprobs_mode
    if "unknown" not in (logprobs_mode, trained_mode) and logprobs_mode != trained_mode:
        notes.append(f"{logprobs_mode} log-probabilities, checkpoint trained on {trained_mode} ones")
    if contract is not None and (model or reader) and (other := other_reader(reader, contract)):
        notes.append(f"log-probabilities of {reader or ITSELF}, checkpoint trained on those of {other}")
    if not notes:
        return ""
    note = "; ".join(notes)
    if on_mismatch == "refuse":
        raise ContractMismatch(f"{note}: train a checkpoint on such runs, or take on_mismatch 'warn'")
    if on_mismatch == "warn":
        meaning = ORDERS_ONLY if for_strangers and other_model and len(notes) == 1 else MAY_MEAN_NOTHING
        warnings.warn(f"metaprobe: {note}; {meaning}", stacklevel=stacklevel + 1)
    return note


BASE_RATES_KEY = "base_rates"
"""Key of the contract that holds the base rates."""
SEPARATOR = "|"
"""Sign between model, task and way of asking in the name of a run."""
MAX_NAMES_SHOWN = 5
"""Most names of runs that an error lists."""
CERTAIN = 1e-6
"""Distance from 0 and 1 to which probabilities are moved before their log-odds are taken. A graph gives float32, which
may round to 0 or 1.
"""


def name_of_run(model: str, task: str = "", variant: str = "") -> str:
    """Returns the name of a run, MODEL|TASK|VARIANT.

    Args:
        model: name of the model.
        task: name of the task; empty for all tasks.
        variant: name of the way of asking; empty for all ways.
    """
    return SEPARATOR.join((model, task, variant))


@dataclass(frozen=True, slots=True)
class BaseRates:
    """The base rates of the runs that a checkpoint was trained on, for heads that are probabilities."""

    between: Mapping[str, float]
    """Maps a head to the standard deviation of the runs' base rates, in log-odds."""
    runs: Mapping[str, Mapping[str, float]]
    """Maps a run to a mapping from a head to a shift. The shift is added to the graph's log-odds, which are those of an
    average run.
    """
    average: Mapping[str, float]
    """Maps a head to its mean value over the training answers."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """Maps a head to the standard deviation, around 1, of the runs' own scales of the log-odds."""

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any], heads: Collection[str]) -> "BaseRates | None":
        """Returns the base rates in the contract; None if it has none, as for a checkpoint that was trained on one run.

        `heads`: names of the checkpoint's probabilities. Raises `ContractMismatch` if the entry is invalid for them.
        """
        stated_rates = contract.get(BASE_RATES_KEY)
        if stated_rates is None:
            return None
        try:
            between, average, scale = (
                {str(n): _finite(v) for n, v in numbers.items()}
                for numbers in (stated_rates["between"], stated_rates["average"], stated_rates.get("scale", {}))
            )
            runs = {
                str(run): {str(n): _finite(v) for n, v in numbers.items()}
                for run, numbers in stated_rates["runs"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ContractMismatch(
                f"the contract's {BASE_RATES_KEY} cannot be read ({error!r}); train it again"
            ) from error
        if unknown_heads := sorted(
            {name for numbers in (between, average, *runs.values()) for name in numbers} - set(heads)
        ):
            raise ContractMismatch(
                f"the contract's {BASE_RATES_KEY} name {unknown_heads[0]!r}; expected heads that are probabilities, "
                f"which are {', '.join(heads) or 'none'}; train it again"
            )
        return cls(between, runs, average, scale)

    def named(self, run: str) -> Mapping[str, float]:
        """Returns the shifts of the run `run`. Raises `ContractMismatch`, with the known names, for an unknown name."""
        if run not in self.runs:
            names = sorted(self.runs)
            known_names = "; ".join(printable(name) for name in names[:MAX_NAMES_SHOWN])
            more_text = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
            raise ContractMismatch(
                f"no run is called {run!r}; a run is named MODEL{SEPARATOR}TASK{SEPARATOR}VARIANT, and this checkpoint "
                f"knows {known_names + more_text or 'none: adapt it with labelled answers of yours'}"
            )
        return self.runs[run]

    def of_run(self, run: str) -> Mapping[str, float] | None:
        """Returns the shifts of the run of this name, or else of the run of its model and task, or of its model alone.

        None if none of these runs is known.
        """
        model, task, _ = (*run.split(SEPARATOR, 2), "", "")[:3]
        names = run, name_of_run(model, task), name_of_run(model)
        return next((self.runs[name] for name in names if name in self.runs), None)

    def of_model(self, model: str | None) -> Mapping[str, float] | None:
        """Returns the shifts of the only run of this model; None if there are several runs of this model, or no run."""
        matching_shifts = [shifts for run, shifts in self.runs.items() if run.partition(SEPARATOR)[0] == model]
        return matching_shifts[0] if len(matching_shifts) == 1 else None

    def add_to(self, heads: dict[str, float], run: Mapping[str, float] | None, model: str | None) -> bool:
        """Adds a run's shifts to the heads' values, and returns whether the run is known.

        Args:
            heads: value of each head, a probability of an average run; changed here.
            run: shifts of the run; None for the only run of the model.
            model: name of the model; None if it is not known.
        """
        shifts = self.of_model(model) if run is None else run
        for name, shift in (shifts or {}).items():
            heads[name] = shifted(heads[name], shift)
        return shifts is not None

    def unknown(self, head: str | None) -> str:
        """Returns the note for a verdict on an answer of an unknown run."""
        average = self.average.get(head or "")
        right_text = "" if average is None else f" ({average:.0%} right)"
        remedy = "name the run" if self.runs else "adapt the checkpoint with labelled answers"
        return (
            f"how often answers of this run are right is not known: the score assumes the average of the training runs"
            f"{right_text}, and orders answers of one run only; {remedy}"
        )


def shifted(probability: float, shift: float) -> float:
    """Returns the probability after `shift` is added to its log-odds."""
    if not shift:
        return probability
    p = min(max(probability, CERTAIN), 1 - CERTAIN)
    return 1 / (1 + math.exp(-(math.log(p / (1 - p)) + shift)))


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)
