"""What people and programs write for right, wrong and unsure."""

import math

_RIGHT = frozenset("1 right correct true yes y pass passed good positive thumbs_up thumbs-up up like accept c".split())
_WRONG = frozenset(
    "0 wrong incorrect false no n fail failed bad negative thumbs_down thumbs-down down dislike reject i".split()
)
_UNSURE = frozenset(("", "unsure", "unknown", "skip", "skipped", "none", "null", "n/a", "na", "?"))
EXPECTED = "1 or right, 0 or wrong, null or unsure, or a share between 0 and 1"


def label_value(said: object) -> float | None:
    """1 for right, 0 for wrong, a share between them where several were asked, and None for unsure.

    Raises `ValueError` for what is none of these.
    """
    if said is None:
        return None
    if isinstance(said, str):
        word = said.strip().casefold()
        if word in _RIGHT:
            return 1.0
        if word in _WRONG:
            return 0.0
        if word in _UNSURE:
            return None
        try:
            said = float(word)
        except ValueError:
            raise ValueError(f"label {word[:40]!r}; expected {EXPECTED}") from None
    # An integer may have more digits than a float can hold.
    if isinstance(said, (bool, int, float)) and 0 <= said <= 1 and math.isfinite(said):
        return float(said)
    raise ValueError(f"label {str(said)[:40]}; expected {EXPECTED}")
