"""Reads LaTeX that `records.answers.latex` leaves alone, with the library `math-verify` (the extra `math`).

Only scoring uses the library, and only for formulas of digits, roots, fractions and products. Votes compare such
answers as text, so a panel decides the same with and without the extra.
"""

import logging
import re
from fractions import Fraction
from importlib.util import find_spec

from metaprobe.records.extras import require

MOST_FORMULA = 200
"""Longest formula that is given to the library, in characters: its time grows fast with the length."""
_FORMULA = re.compile(
    r"(?:\\(?:sqrt(?!\s*\[)|[dtc]?frac|cdot|times|left|right|div)(?![A-Za-z])|\\[,;! ]|\d{1,12}(?![\d.])|[\s{}()+*/-]"
    r"|\^\s?(?:\{\s?\d{1,2}\s?\}|\d)(?![^\^]*\^))+"
)
r"""Matches formulas that are given to the library: whole numbers, known commands, and one power with a small exponent.

Units, sets, decimals and variables are not given to it: it reads `\\{5\\}` and `5 cm` as 5.
"""


def is_equal_latex(answer: str, value: Fraction) -> bool:
    """Returns whether an answer in LaTeX equals this number according to `math-verify`. False without the extra."""
    formula = answer.strip().rstrip(".").strip("$").strip()
    if formula.startswith("\\boxed{") and formula.endswith("}"):
        formula = formula.removeprefix("\\boxed{")[:-1]
    if "\\" not in formula or len(formula) > MOST_FORMULA or not _FORMULA.fullmatch(formula):
        return False
    if find_spec("math_verify") is None:
        return False
    math_verify = require("math_verify", "math")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of each call without its own timer, a signal
    config = [math_verify.LatexExtractionConfig()]
    gold = f"\\boxed{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}"
    parsed_gold, parsed_answer = (
        math_verify.parse(text, extraction_config=config, parsing_timeout=None, fallback_mode="no_fallback")
        for text in (gold, f"\\boxed{{{formula}}}")
    )
    return bool(parsed_answer) and bool(
        math_verify.verify(parsed_gold, parsed_answer, timeout_seconds=None, float_rounding=12, strict=True)
    )
