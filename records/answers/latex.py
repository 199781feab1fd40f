"""Reads the simple LaTeX of answers: `\\boxed`, `\\text`, `\\frac`, escaped signs, spaces. The rest stays as it is."""

import re
from collections.abc import Iterator

_TYPE_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt|operatorname|mbox|hbox)"
    r"\s*\{([^{}]*)\}"
)
_FRACTION = re.compile(
    r"(?:(\d)\s*)?\\(?:[dtcs]|nice)?frac\s*(?:\{([^{}]*)\}\s*(?:\{([^{}]*)\}|(\d))|(\d)\s*(?:\{([^{}]*)\}|(\d)))"
)
_OVER_FRACTION = re.compile(r"\{([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{(?:equation|displaymath|math|gather|center)\*?\}")
"""Matches the begin or end of an environment that only sets a formula apart."""
_NUMERAL = re.compile(r"\s*-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)\s*")
_TEXT_OF_COMMAND = {
    **dict.fromkeys(("left", "right", "displaystyle", "limits", "big", "Big", "bigl", "bigr"), ""),
    **dict.fromkeys(("quad", "qquad", "space", "thinspace"), " "),
    **dict.fromkeys(("to", "rightarrow", "longrightarrow"), "→"),
    **dict.fromkeys(("Rightarrow", "implies"), "⇒"),
    **dict.fromkeys(("le", "leq", "leqslant"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("ldots", "dots", "cdots"), "…"),
    **{"lt": "<", "gt": ">", "times": "×", "cdot": "·", "div": "÷", "pm": "±", "mp": "∓", "approx": "≈", "pi": "π"},
    **{"infty": "∞", "degree": "°", "circ": "°", "percent": "%", "pounds": "£", "euro": "€", "cup": "∪", "cap": "∩"},
    **{
        "in": "∈",
        "sim": "~",
        "emptyset": "∅",
        "varnothing": "∅",
        "neg": "¬",
        "land": "∧",
        "lor": "∨",
        "therefore": "so ",
    },
    **dict(zip("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda".split(), "αβγδεζηθικλ", strict=True)),
    **dict(zip("mu nu xi rho sigma tau phi chi psi omega".split(), "μνξρστφχψω", strict=True)),
    **dict(zip("Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split(), "ΓΔΘΛΞΠΣΦΨΩ", strict=True)),
}
"""Maps a LaTeX command to the text that it shows."""
_ANY_COMMAND = re.compile(r"\\([A-Za-z]+)(?![A-Za-z])[^\S\n]?")
_ESCAPED = re.compile(r"\\([%$#&_{}])")
_SPACE_COMMAND = re.compile(r"\\[,;:> ]|(?<=\d)~(?=\d)")
_DOLLAR_FORMULA = re.compile(r"(?<![\\$\w])(\$\$?)(?=[^\s$])((?:[^$\\\n]|\\.)*)(?<=\S)\1(?![\d$])")
"""Matches a formula between dollar signs by Pandoc's rule: no blank just inside them, no digit after the last."""
_DELIMITER = re.compile(r"\\[\[\]()]")
_SHORT_SCRIPT = re.compile(r"(?<=[\^_])\{(\w)\}(?!\w)")
"""Matches a power or an index of one character in braces: "x^{2}"."""
_INTEGER_ROOT = re.compile(r"\\sqrt\s*(?:\{\s*(\d+)\s*\}|(\d)(?!\d))(?![\w{\\])")
"""Matches the root of a whole number that nothing follows."""
_RAISED_DEGREE = re.compile(r"\^\s*(?:\{\s*°\s*\}|°)")
_BOX_START = re.compile(r"\\(?:f?boxed|f(?:rame)?box)\s*\{")
_BRACE = re.compile(r"[{}]")
MOST_BOXES = 32
"""Most boxes of a text that are read, counted from its end. A text with more repeats itself."""


def boxed_parts(text: str) -> Iterator[tuple[int, int, int]]:
    """Yields the last boxes of a text in order, as (start of the box, start of its content, end of its content).

    The closing brace is searched up to the next box, or to the end of the text.
    """
    if "\\" not in text:
        return
    starts = list(_BOX_START.finditer(text))[-MOST_BOXES:]
    box_end = 0
    for index, box in enumerate(starts):
        if box.start() < box_end:
            continue  # within another box
        depth = 1
        search_end = starts[index + 1].end() + 1000 if index + 1 < len(starts) else len(text)
        for brace in _BRACE.finditer(text, box.end(), search_end):
            depth += 1 if brace.group() == "{" else -1
            if not depth:
                box_end = brace.end()
                yield box.start(), box.end(), brace.start()
                break


def without_boxes(text: str) -> str:
    """Returns the text with each box replaced by its content, after a product sign if a digit stands before the box."""
    text_parts, copied_until = [], 0
    for start, content_start, content_end in boxed_parts(text):
        text_parts += [
            text[copied_until:start],
            "·" if text[max(0, start - 1) : start].isdigit() else "",
            text[content_start:content_end],
        ]
        copied_until = content_end + 1
    return "".join([*text_parts, text[copied_until:]])


def plain_latex(text: str) -> str:
    r"""Returns the text as LaTeX shows it, for known commands only: `\\frac{1}{2}` is 1/2, `\\text{C}` is C."""
    text = _SPACE_COMMAND.sub(" ", _DOLLAR_FORMULA.sub(r"\2", text).replace("{,}", ","))
    text = _SHORT_SCRIPT.sub(r"\1", text)
    if "\\" not in text:
        return text
    text = _ENVIRONMENT.sub("", _DELIMITER.sub("", without_boxes(text))).replace("\\!", "")
    text = _INTEGER_ROOT.sub(lambda match: f"√{match[1] or match[2]}", text)
    text = _OVER_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _DOLLAR_FORMULA.sub(r"\2", text)
    for _ in range(2):  # type within type: \textbf{\text{C}}
        text = _TYPE_COMMAND.sub(r"\1", text)
    text = _ANY_COMMAND.sub(lambda match: _TEXT_OF_COMMAND.get(match[1], match.group()), text)
    text = _FRACTION.sub(_fraction_with_slash, text)
    return _RAISED_DEGREE.sub("°", _ESCAPED.sub(r"\1", text))


def _fraction_with_slash(match: re.Match[str]) -> str:
    r"""Returns 1/2 for `\\frac{1}{2}`, and (x)/(y) for `\\frac{x}{y}`. A minus below moves to the numerator."""
    before, *fraction_parts = match.groups()
    numerator, denominator = [fraction_part for fraction_part in fraction_parts if fraction_part is not None]
    has_numerals = _NUMERAL.fullmatch(numerator) and _NUMERAL.fullmatch(denominator)
    if has_numerals and denominator.strip().startswith("-"):
        denominator = denominator.strip()[1:]
        numerator = numerator.strip()[1:] if numerator.strip().startswith("-") else f"-{numerator.strip()}"
    return (f"{before} " if before else "") + (
        f"{numerator.strip()}/{denominator.strip()}" if has_numerals else f"({numerator})/({denominator})"
    )
