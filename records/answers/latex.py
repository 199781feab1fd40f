"""Reads the simple LaTeX of answers: `\\boxed`, `\\text`, `\\frac`, escaped signs, spaces. The rest stays as it is."""

import re
from collections.abc import Iterator

_SETS_TYPE = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt|operatorname|mbox|hbox)"
    r"\s*\{([^{}]*)\}"
)
_FRACTION = re.compile(
    r"(?:(\d)\s*)?\\(?:[dtcs]|nice)?frac\s*(?:\{([^{}]*)\}\s*(?:\{([^{}]*)\}|(\d))|(\d)\s*(?:\{([^{}]*)\}|(\d)))"
)
_OVER = re.compile(r"\{([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{(?:equation|displaymath|math|gather|center)\*?\}")
"""Matches the begin or end of an environment that only sets a formula apart."""
_NUMERAL = re.compile(r"\s*-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)\s*")
_SIGNS = {
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
_COMMAND = re.compile(r"\\([A-Za-z]+)(?![A-Za-z])[^\S\n]?")
_ESCAPED = re.compile(r"\\([%$#&_{}])")
_SPACE = re.compile(r"\\[,;:> ]|(?<=\d)~(?=\d)")
_MATH = re.compile(r"(?<![\\$\w])(\$\$?)(?=[^\s$])((?:[^$\\\n]|\\.)*)(?<=\S)\1(?![\d$])")
"""Matches a formula between dollar signs by Pandoc's rule: no blank just inside them, no digit after the last."""
_DELIMITER = re.compile(r"\\[\[\]()]")
_SHORT_SCRIPT = re.compile(r"(?<=[\^_])\{(\w)\}(?!\w)")
"""Matches a power or an index of one character in braces: "x^{2}"."""
_ROOT = re.compile(r"\\sqrt\s*(?:\{\s*(\d+)\s*\}|(\d)(?!\d))(?![\w{\\])")
"""Matches the root of a whole number that nothing follows."""
_DEGREES = re.compile(r"\^\s*(?:\{\s*°\s*\}|°)")
_BOX = re.compile(r"\\(?:f?boxed|f(?:rame)?box)\s*\{")
_BRACE = re.compile(r"[{}]")
MOST_BOXES = 32
"""Most boxes of a text that are read, counted from its end. A text with more repeats itself."""


def boxed_parts(text: str) -> Iterator[tuple[int, int, int]]:
    """Yields the last boxes of a text in order, as (start of the box, start of its content, end of its content).

    The closing brace is searched up to the next box, or to the end of the text.
    """
    if "\\" not in text:
        return
    starts = list(_BOX.finditer(text))[-MOST_BOXES:]
    done = 0
    for number, box in enumerate(starts):
        if box.start() < done:
            continue  # within another box
        depth = 1
        until = starts[number + 1].end() + 1000 if number + 1 < len(starts) else len(text)
        for brace in _BRACE.finditer(text, box.end(), until):
            depth += 1 if brace.group() == "{" else -1
            if not depth:
                done = brace.end()
                yield box.start(), box.end(), brace.start()
                break


def without_boxes(text: str) -> str:
    """Returns the text with each box replaced by its content, after a product sign if a digit stands before the box."""
    parts, done = [], 0
    for start, inner, end in boxed_parts(text):
        parts += [text[done:start], "·" if text[max(0, start - 1) : start].isdigit() else "", text[inner:end]]
        done = end + 1
    return "".join([*parts, text[done:]])


def plain_latex(text: str) -> str:
    r"""Returns the text as LaTeX shows it, for known commands only: `\\frac{1}{2}` is 1/2, `\\text{C}` is C."""
    text = _SPACE.sub(" ", _MATH.sub(r"\2", text).replace("{,}", ","))
    text = _SHORT_SCRIPT.sub(r"\1", text)
    if "\\" not in text:
        return text
    text = _ENVIRONMENT.sub("", _DELIMITER.sub("", without_boxes(text))).replace("\\!", "")
    text = _ROOT.sub(lambda found: f"√{found[1] or found[2]}", text)
    text = _OVER.sub(r"\\frac{\1}{\2}", text)
    text = _MATH.sub(r"\2", text)
    for _ in range(2):  # type within type: \textbf{\text{C}}
        text = _SETS_TYPE.sub(r"\1", text)
    text = _COMMAND.sub(lambda found: _SIGNS.get(found[1], found.group()), text)
    text = _FRACTION.sub(_slash, text)
    return _DEGREES.sub("°", _ESCAPED.sub(r"\1", text))


def _slash(found: re.Match[str]) -> str:
    before, *parts = found.groups()
    top, bottom = [part for part in parts if part is not None]
    plain = _NUMERAL.fullmatch(top) and _NUMERAL.fullmatch(bottom)
    if plain and bottom.strip().startswith("-"):
        bottom = bottom.strip()[1:]
        top = top.strip()[1:] if top.strip().startswith("-") else f"-{top.strip()}"
    return (f"{before} " if before else "") + (f"{top.strip()}/{bottom.strip()}" if plain else f"({top})/({bottom})")
