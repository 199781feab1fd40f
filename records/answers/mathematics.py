"""Reads LaTeX that `records.answers.latex` leaves alone, by the library `math-verify`: the extra `math`.

Only scoring asks it, and only for formulas of digits, roots, fractions and products. Votes compare such answers as
text, so that a panel decides alike with and without the extra.
"""

import logging
import re
from fractions import Fraction
from importlib.util import find_spec

from metaprobe.records.extras import require

MOST_FORMULA = 200
"""Characters of a formula that is given to the library: its time grows fast with the length."""
_FORMULA = re.compile(
    r"(?:\\(?:sqrt(?!\s*\[)|[dtc]?frac|cdot|times|left|right|div)(?![A-Za-z])|\\[,;! ]|\d{1,12}(?![\d.])|[\s{}()+*/-]"
    r"|\^\s?(?:\{\s?\d{1,2}\s?\}|\d)(?![^\^]*\^))+"
)
"""Formulas that are given to the library: whole numbers, known commands, and one power with a small exponent. Units,
sets, decimals and variables are not: it reads `\\{5\\}` and `5 cm` as 5."""


def is_equal_latex(answer: str, value: Fraction) -> bool:
    """Whether an answer in LaTeX is this number by `math-verify`. False without the extra."""
    formula = answer.strip().rstrip(".").strip("$").strip()
    if formula.startswith("\\boxed{") and formula.endswith("}"):
        formula = formula.removeprefix("\\boxed{")[:-1]
    if "\\" not in formula or len(formula) > MOST_FORMULA or not _FORMULA.fullmatch(formula):
        return False
    if find_spec("math_verify") is None:
        return False
    library = require("math_verify", "math")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of each call without its own timer, a signal
    config = [library.LatexExtractionConfig()]
    gold = f"\\boxed{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}"
    wanted, read = (
        library.parse(text, extraction_config=config, parsing_timeout=None, fallback_mode="no_fallback")
        for text in (gold, f"\\boxed{{{formula}}}")
    )
    return bool(read) and bool(library.verify(wanted, read, timeout_seconds=None, float_rounding=12, strict=True))
