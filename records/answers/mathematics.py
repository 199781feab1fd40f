"""Reads LaTeX that `records.answers.latex` leaves alone, by the library `math-verify`: the extra `math`.

Only scoring asks it. Votes compare such answers as text, so that a panel decides alike with and without the extra.
"""

import re
from fractions import Fraction
from importlib.util import find_spec

MOST_FORMULA = 200
"""Characters of a formula that is given to the library: its time grows fast with the length."""
_TOWER = re.compile(r"\^\s*\{?[^{}\s]*\^|\^\s*\{?\s*-?\d{4}|\d{30}|!|\\(?:sum|int|prod|lim|binom)")
"""What takes a computer algebra long: towers of powers, factorials, sums."""


def is_equal_latex(answer: str, value: Fraction) -> bool:
    """Whether an answer in LaTeX is this number by `math-verify`. False without the extra, and for what it cannot read."""
    if "\\" not in answer or len(answer) > MOST_FORMULA or _TOWER.search(answer) or find_spec("math_verify") is None:
        return False
    from math_verify import LatexExtractionConfig, parse, verify

    wanted = parse(f"\\boxed{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}", parsing_timeout=None)
    held = answer if "\\boxed" in answer else f"\\boxed{{{answer.strip().strip('$').rstrip('.').strip('$')}}}"
    read = parse(held, extraction_config=[LatexExtractionConfig()], parsing_timeout=None, fallback_mode="no_fallback")
    return bool(read) and bool(verify(wanted, read, timeout_seconds=None, float_rounding=12, strict=True))
