"""The numbers that a probe gives every token of an answer, and how a notebook shows them."""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from metaprobe.checkpoints.display import explain_fields
from metaprobe.records.types import FloatArray

_LOW, _HIGH = "217,95,2", "31,119,180"
"""Orange and blue, which nearly everybody can distinguish; laid thinly over a light or a dark page."""


@explain_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TokenScores:
    """The numbers that a probe gives an answer and each of its T tokens."""

    score: float
    """P(right) of the whole answer, in [0, 1]."""
    tokens: tuple[str, ...]
    """The T tokens as text."""
    values: FloatArray
    """(T,): P(right) as if the token's state were all there is of the answer; for comparing tokens with each other."""

    def __repr__(self) -> str:
        return f"TokenScores(score={self.score:.3f}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str:
        """The answer for notebooks: tokens of low confidence on orange, of high confidence on blue."""
        spans = [_span(token, float(value)) for token, value in zip(self.tokens, self.values, strict=True)]
        return (
            f'<div style="color:inherit"><b>P(right) {self.score:.3f}</b>'
            f'<div style="white-space:pre-wrap;line-height:1.8">{"".join(spans)}</div>'
            f"<small>{_key(_LOW, 'low')} {_key(_HIGH, 'high')} P(right), read at each token alone</small></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as JSON's own types."""
        return {"score": self.score, "tokens": list(self.tokens), "values": np.asarray(self.values).tolist()}


def _span(token: str, value: float) -> str:
    colour = _LOW if value < 0.5 else _HIGH
    style = f"background:rgba({colour},{min(abs(value - 0.5) * 1.4, 0.7):.2f});border-radius:2px"
    return f'<span title="{value:.3f}" style="{style}">{escape(token)}</span>'


def _key(colour: str, name: str) -> str:
    return f'<span style="background:rgba({colour},0.5);padding:0 6px">{name}</span>'
