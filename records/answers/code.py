"""Finds the Python code in an answer: in its last whole fence, or from the first line of code on."""

import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

MOST_CODE = 100_000
"""Longest code that is compiled, in characters. A function that answers a question has hundreds."""
MOST_COMPILED = 40
"""Most compilations of parts of one text. The limit bounds the time for texts that are almost code."""
MOST_CLOSINGS = 6
"""Most closing marks that are tried for one opening mark, because code may hold fences in its docstrings."""
MOST_FENCES = 60
"""Most lines with a fence mark that are read, counted from the end of the text."""

COMPILED_AS = "metaprobe-answer"
"""File name under which answers are compiled. Python warns of odd code by file name, and a model's code is not ours."""
warnings.filterwarnings("ignore", category=SyntaxWarning, module=re.escape(COMPILED_AS))

_MARK = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.M)
_END_OF_LINE = re.compile(r"(?<=[^\s`])(```)[ \t]*$", re.M)
"""Matches a closing mark at the end of a line of code."""
_PYTHON = frozenset(("", "python", "python3", "py", "py3", "python2", "ipython", "pycon", "{.python}", "{python}"))
"""Labels of a fence that holds Python. A fence without a label may hold Python too."""
_BEGINS = re.compile(r"(?:async\s+def|def|import|from|class)\b|@|\w+\s*(?::[^=\n]+)?=(?!=)")
_TOKEN_AT_END = re.compile(r"(?:<\|[\w-]{1,30}\|>|</s>)\Z")
"""Matches a token that ends an answer, which some engines leave in the text."""
_PROMPT_MARKS = re.compile(r"^\[/?(?:BEGIN|DONE|END|PYTHON)\][ \t]*$", re.M)
"""Matches marks around code in MBPP and of Llama, alone in a line. `[DONE]` would otherwise be run as a list."""
_TESTS = re.compile(
    r"(?:async\s+)?def\s+(?:test|check)\w*\s*\(|class\s+(?:Test\w*|\w+\s*\([^)\n]*TestCase[^)\n]*\))\s*[(:]?"
)
_REPL = re.compile(r"^(?:>>>|\.\.\.)(?: |$)")
"""Matches prompts of an interactive Python session."""
_DEFINES = re.compile(r"^(?:async\s+def|def|class)\b|^\w+\s*=\s*lambda\b", re.M)


@dataclass(frozen=True, slots=True)
class _Block:
    """The text between two marks of a fence."""

    code: str
    label: str
    whole: bool
    """Whether the fence is closed and its code parses as a whole."""


class _Compiler:
    """Compiles parts of one text, at most `MOST_COMPILED` times."""

    def __init__(self) -> None:
        self.left = MOST_COMPILED

    def wrong_line(self, code: str) -> int | None:
        """Returns the line of the first error, 0 if the error names no line, or None if the code parses."""
        if self.left <= 0 or len(code) > MOST_CODE:
            return 0
        self.left -= 1
        try:
            compile(code, COMPILED_AS, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            return max(getattr(error, "lineno", None) or 0, 0)
        return None


def function_code(text: str) -> str | None:
    """Returns the Python code in a text, or None if there is none.

    The code is the last whole fence that defines something. Without such a fence it reaches from the first line of code
    to the last line that parses. Returns None as well if the code is longer than `MOST_CODE` characters, or if
    `MOST_COMPILED` parts of the text do not parse.
    """
    compiler = _Compiler()
    text = text.replace("\r\n", "\n").rstrip()
    if end := _TOKEN_AT_END.search(text, max(0, len(text) - 40)):
        text = text[: end.start()]
    text = _PROMPT_MARKS.sub("", text)
    text = _END_OF_LINE.sub(r"\n\1", text)
    blocks = [block for block in _blocks(text, compiler) if block.label.lower() in _PYTHON]
    # The last whole fence that defines something is the answer. A fence that only shows its use, tests or output is
    # not.
    answers = [block for block in blocks if not _only_tests(block.code)] or blocks
    for wanted in (_DEFINES, _BEGINS):
        for block in reversed(answers):
            if block.whole and _begins(block.code, wanted) and (code := _parsed(block.code, compiler)):
                return code
    for block in reversed(blocks):
        if not block.whole and (code := _parsed(block.code, compiler)):
            return code
    return None if blocks and any(block.whole for block in blocks) else _parsed(_MARK.sub("", text), compiler)


def _only_tests(code: str) -> bool:
    """Returns whether the code defines nothing but tests."""
    defined = [found.start() for found in _DEFINES.finditer(code)]
    return bool(defined) and all(_TESTS.match(code, start) for start in defined)


def _without_prompts(code: str) -> str:
    """Returns the code of an interactive session without prompts and output; other code unchanged."""
    if not code.lstrip().startswith(">>> "):
        return code
    return "\n".join(line[4:] for line in code.split("\n") if _REPL.match(line))


def _begins(code: str, pattern: re.Pattern[str]) -> bool:
    if pattern is _DEFINES:
        return pattern.search(code) is not None
    return any(pattern.match(line) for line in code.split("\n"))


def _blocks(text: str, compiler: _Compiler) -> Iterator[_Block]:
    """Yields the fenced parts of a text in order. Text before a closing mark that was never opened counts as fenced."""
    marks = list(_MARK.finditer(text))[-MOST_FENCES:]
    done, place = 0, 0
    while place < len(marks):
        opening = marks[place]
        closings = [n for n in range(place + 1, len(marks)) if _closes(marks[n], opening)][:MOST_CLOSINGS]
        for number in closings:
            code = _without_prompts(textwrap.dedent(text[opening.end() : marks[number].start()].strip("\n")))
            python = opening[3].lower() in _PYTHON
            if not python or (code.strip() and compiler.wrong_line(code) is None):
                yield _Block(code, opening[3], True)
                done, place = marks[number].end(), number + 1
                break
        else:
            before = text[done : opening.start()]
            after = textwrap.dedent(
                text[opening.end() : marks[closings[0]].start() if closings else len(text)].strip("\n")
            )
            if not opening[3] and _begins(before, _BEGINS) and not _begins(after, _BEGINS):
                yield _Block(textwrap.dedent(before.strip("\n")), "", False)
                done, place = opening.end(), place + 1
            else:
                yield _Block(after, opening[3], False)
                place = closings[0] + 1 if closings else place + 1
                done = marks[place - 1].end()


def _closes(mark: re.Match[str], opening: re.Match[str]) -> bool:
    """Returns whether a mark closes `opening`: no label, the same character, and at least as many of them."""
    return not mark[3] and mark[2][0] == opening[2][0] and len(mark[2]) >= len(opening[2])


def _parsed(text: str, compiler: _Compiler) -> str | None:
    """Returns the longest beginning that parses, starting at the first line of code; None if no beginning parses."""
    lines = text.strip("\n").split("\n")
    starts = [i for i, line in enumerate(lines) if _BEGINS.match(line)]
    if not starts:
        lines = textwrap.dedent(text).strip("\n").split("\n")
        starts = [i for i, line in enumerate(lines) if _BEGINS.match(line)]
    lines = lines[starts[0] :] if starts else []
    while lines and compiler.left > 0:
        code = "\n".join(lines)
        if len(code) > MOST_CODE:
            return None
        line = compiler.wrong_line(code)
        if line is None:
            return code
        # A beginning that holds the line of the error has the same error, so it is cut before that line.
        lines = lines[: min(max(line or len(lines), 1), len(lines)) - 1]
    return None
