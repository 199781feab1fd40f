"""Finds the Python code in an answer: in its last whole fence, or from the first line of code on."""

import ast
import itertools
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

_FENCE_MARK = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.M)
_MARK_AT_LINE_END = re.compile(r"(?<=[^\s`])(```)(?:[ \t]+\w[^`\n]*)?[ \t]*$", re.M)
"""Matches a closing mark at the end of a line of code, with a sentence after it."""
_ONE_LINE = re.compile(r"^[ \t]*(`{1,3})(?:python|py)?[ \t]*((?:def|class|lambda|import|from)\b[^\n`]*)\1[ \t]*$", re.M)
"""Matches code between marks in one line."""
_QUOTED = re.compile(r"^(?:>(?: |$))+", re.M)
"""Matches the mark of a quotation before a line."""
_QUOTED_FENCE = re.compile(r"^(?:> ?)+(?:```|~~~)", re.M)
_ODD_INDENT = re.compile(r"^[ \t]*[\xa0\u2000-\u200a\u202f\u3000][ \t\xa0\u2000-\u200a\u202f\u3000]*", re.M)
"""Matches an indentation with blanks that Python refuses."""
_INVISIBLE = re.compile("^[\u200b\u2060\ufeff]+", re.M)
_PYTHON_LABELS = frozenset(
    ("", "python", "python3", "py", "py3", "python2", "ipython", "pycon", "{.python}", "{python}")
)
"""Labels of a fence that holds Python. A fence without a label may hold Python too."""
_CODE_LINE_START = re.compile(r"(?:async\s+def|def|import|from|class)\b|@|\w+\s*(?::[^=\n]+)?=(?!=)")
_TOKEN_AT_END = re.compile(r"(?:<\|[\w-]{1,30}\|>|</s>)\Z")
"""Matches a token that ends an answer, which some engines leave in the text."""
_PROMPT_MARKS = re.compile(r"^\[/?(?:BEGIN|DONE|END|PYTHON|TESTS?)\][ \t]*$", re.M)
"""Matches marks around code in MBPP and of Llama, alone in a line. `[DONE]` would otherwise be run as a list."""
_TEST_DEFINITION = re.compile(
    r"(?:async\s+)?def\s+(?:test|check)\w*\s*\(|class\s+(?:Test\w*|\w+\s*\([^)\n]*TestCase[^)\n]*\))\s*[(:]?"
)
_DEMO_DEFINITION = re.compile(r"(?:async\s+)?def\s+(?:main|demo)\s*\(")
"""Matches a function that shows the use of the answer, unless nothing else is defined."""
_SESSION_PROMPT = re.compile(r"^(?:>>>|\.\.\.)(?: |$)")
"""Matches prompts of an interactive Python session."""
_DEFINITION = re.compile(r"^(?:async\s+def|def|class)\b|^\w+\s*=\s*lambda\b", re.M)


@dataclass(frozen=True, slots=True)
class _Block:
    """The text between two marks of a fence."""

    code: str
    label: str
    is_whole: bool
    """Whether the fence is closed and its code parses as a whole."""


class _Compiler:
    """Compiles parts of one text, at most `MOST_COMPILED` times."""

    def __init__(self) -> None:
        self.compilations_left = MOST_COMPILED

    def tree(self, code: str) -> ast.Module | None:
        """Returns the syntax tree, or None if the code does not parse. A "return" may stand outside a function."""
        if self.compilations_left <= 0 or len(code) > MOST_CODE:
            return None
        self.compilations_left -= 1
        try:
            return ast.parse(code, COMPILED_AS)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None

    def error_line(self, code: str) -> int | None:
        """Returns the line of the first error, 0 if the error names no line, or None if the code parses."""
        if self.compilations_left <= 0 or len(code) > MOST_CODE:
            return 0
        self.compilations_left -= 1
        try:
            compile(code, COMPILED_AS, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            return max(getattr(error, "lineno", None) or 0, 0)
        return None


def function_code(text: str, question: str = "") -> str | None:
    """Returns the Python code in a text, or None if there is none.

    The code is the last whole fence that defines something, with the fences that it needs. Without such a fence it is
    the body of a function, after the function that the question leaves open, if there is one. Otherwise it reaches from
    the first line of code to the last line that parses. Returns None as well if the code is longer than `MOST_CODE`
    characters, or if `MOST_COMPILED` parts of the text do not parse.
    """
    compiler = _Compiler()
    # Texts of engines, of quotations and of one line are brought into fences of their own lines.
    text = text.replace("\r\n", "\n").replace("\r", "\n").rstrip()
    if end_token := _TOKEN_AT_END.search(text, max(0, len(text) - 40)):
        text = text[: end_token.start()]
    text = _INVISIBLE.sub("", _PROMPT_MARKS.sub("", text))
    if _QUOTED_FENCE.search(text):
        text = _QUOTED.sub("", text)
    text = _ODD_INDENT.sub(lambda match: " " * len(match.group()), text)
    text = _ONE_LINE.sub(r"```\n\2\n```", text)
    text = _MARK_AT_LINE_END.sub(r"\n\1", text)
    blocks = [block for block in _fenced_blocks(text, compiler) if block.label.lower() in _PYTHON_LABELS]
    # The last whole fence that defines something is the answer. A fence that only shows its use, tests or output is
    # not.
    answer_blocks = [block for block in blocks if not _defines_only(block.code, _TEST_DEFINITION)] or blocks
    blocks_without_demos = [block for block in answer_blocks if not _defines_only(block.code, _DEMO_DEFINITION)]
    if any(block.is_whole and _DEFINITION.search(block.code) for block in blocks_without_demos):
        answer_blocks = blocks_without_demos
    for pattern in (_DEFINITION, _CODE_LINE_START):
        for block in reversed(answer_blocks):
            if block.is_whole and _has_code_line(block.code, pattern) and (code := _parsed_code(block.code, compiler)):
                other_blocks = [other for other in answer_blocks if other.is_whole and other is not block]
                return _code_with_needed_blocks(code, [other.code for other in other_blocks])
        for part in [block.code for block in reversed(blocks) if not block.is_whole] if blocks else [text]:
            if pattern is _DEFINITION and (body := _function_body(part, compiler)):
                return _completed_function(body, question, compiler) or body
    for block in reversed(blocks):
        if not block.is_whole and (code := _parsed_code(block.code, compiler)):
            return code
    has_whole_block = any(block.is_whole for block in blocks)
    return None if has_whole_block else _parsed_code(_FENCE_MARK.sub("", text), compiler)


_BODY_INDENT = " " * 4
_OPEN_FUNCTION = re.compile(r"^([ \t]*)(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(", re.M)
_SETUP_LINE_START = re.compile(r"^(?:import|from|def|async\s+def|class|@)", re.M)
"""Matches the beginning of a line of code in a question."""
MOST_STARTS = 8
"""Most lines of a question at which its code is tried to begin."""
_RETURN_WORD = re.compile(r"\b(?:return|yield)\b")
_BEGINS_DEFINITION = re.compile(r"\n*(?:(?:async[ \t]+)?def\b|class\b|@)")
"""Matches a text that begins with a whole function or class, without indentation."""


def _function_body(text: str, compiler: _Compiler) -> str | None:
    """Returns the body of a function, indented, with which a text begins; None if the text does not begin with one.

    A body has a "return" or "yield" outside of functions within it. The first line may lack its indentation, as in
    texts without blanks at their ends. What follows the body without indentation is left out.
    """
    if _BEGINS_DEFINITION.match(text) or not _RETURN_WORD.search(text):
        return None
    lines = text.strip("\n").split("\n")
    indented = list(itertools.takewhile(lambda line: not line.strip() or line[0] in " \t", lines[1:]))
    if lines[0][:1].isspace():
        tried_bodies = [textwrap.dedent("\n".join([lines[0], *indented]))]
    else:
        tried_bodies = ["\n".join(lines), lines[0] + "\n" + textwrap.dedent("\n".join(indented))]
    for code in tried_bodies:
        tree = compiler.tree(code)
        if tree is not None and _has_return(tree):
            return textwrap.indent(code.rstrip(), _BODY_INDENT)
    return None


def _has_return(tree: ast.Module) -> bool:
    """Returns whether code has a "return" or "yield" outside of functions and classes."""
    within: list[ast.AST] = [*tree.body]
    while within:
        node = within.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            within += ast.iter_child_nodes(node)
    return False


def _completed_function(body: str, question: str, compiler: _Compiler) -> str | None:
    """Returns the last function of a question, and the code before it, with this body; None if there is no function.

    Args:
        body: the body, indented by `_BODY_INDENT`.
        question: a question that ends with the beginning of a function, such as its first line and docstring.
        compiler: tries the code.
    """
    question = _FENCE_MARK.sub("", question).replace("\r\n", "\n")
    opening = next(reversed(list(_OPEN_FUNCTION.finditer(question))), None)
    if opening is None:
        return None
    first_line, *lines_after = question[opening.start() :].split("\n")
    function_lines = itertools.takewhile(lambda line: not line.strip() or line[0] in " \t)", lines_after)
    function_start = "\n".join([first_line, *function_lines]).rstrip()
    for start in itertools.islice(_SETUP_LINE_START.finditer(question, 0, opening.end()), MOST_STARTS):
        code = f"{question[start.start() : opening.start()]}{function_start}\n{textwrap.indent(body, opening[1])}"
        if compiler.error_line(code) is None:
            return code
    return None


def _code_with_needed_blocks(code: str, other_blocks: list[str]) -> str:
    """Returns the code after those other blocks of its text without which it lacks names, or which call it.

    A model may set imports, a helper and the function in a fence each. A block belongs to the code if it only imports
    and defines things, none of them a second time, and one side uses a name of the other.
    """
    defined_names, read_names, _ = _names_of(code)
    code_parts = [code]
    for other_block in reversed(other_blocks):
        other_defined, other_read, only_defines = _names_of(other_block)
        if (
            not only_defines
            or not other_defined.isdisjoint(defined_names)
            or sum(map(len, code_parts)) + len(other_block) > MOST_CODE
        ):
            continue
        if other_defined & (read_names - defined_names) or other_read & defined_names:
            code_parts.insert(0, other_block)
            defined_names, read_names = defined_names | other_defined, read_names | other_read
    return "\n\n".join(code_parts)


def _names_of(code: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """Returns the names that a code defines at its top, the names that it reads, and whether it only imports and
    defines.

    All are empty for code that does not parse.
    """
    try:
        tree = ast.parse(code, COMPILED_AS)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return frozenset(), frozenset(), False
    defined_names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined_names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            defined_names |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    only_defines = all(isinstance(statement, _DEFINITION_NODES) for statement in tree.body)
    read_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return frozenset(defined_names), frozenset(read_names), only_defines and bool(defined_names)


_DEFINITION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def _defines_only(code: str, pattern: re.Pattern[str]) -> bool:
    """Returns whether the code defines something, and nothing but what the pattern matches."""
    definition_starts = [match.start() for match in _DEFINITION.finditer(code)]
    return bool(definition_starts) and all(pattern.match(code, start) for start in definition_starts)


def _without_prompts(code: str) -> str:
    """Returns the code of an interactive session without prompts and output; other code unchanged."""
    if not code.lstrip().startswith(">>> "):
        return code
    return "\n".join(line[4:] for line in code.split("\n") if _SESSION_PROMPT.match(line))


def _has_code_line(code: str, pattern: re.Pattern[str]) -> bool:
    if pattern is _DEFINITION:
        return pattern.search(code) is not None
    return any(pattern.match(line) for line in code.split("\n"))


def _fenced_blocks(text: str, compiler: _Compiler) -> Iterator[_Block]:
    """Yields the fenced parts of a text in order. Text before a closing mark that was never opened counts as fenced."""
    marks = list(_FENCE_MARK.finditer(text))[-MOST_FENCES:]
    block_start, mark_index = 0, 0
    while mark_index < len(marks):
        opening = marks[mark_index]
        closings = [index for index in range(mark_index + 1, len(marks)) if _closes(marks[index], opening)]
        closings = closings[:MOST_CLOSINGS]
        for closing_index in closings:
            code = _without_prompts(textwrap.dedent(text[opening.end() : marks[closing_index].start()].strip("\n")))
            is_python = opening[3].lower() in _PYTHON_LABELS
            if not is_python or (code.strip() and compiler.error_line(code) is None):
                yield _Block(code, opening[3], True)
                block_start, mark_index = marks[closing_index].end(), closing_index + 1
                break
        else:
            # No closing mark makes whole code: the mark is a closing one without an opening, or opens broken code.
            before = text[block_start : opening.start()]
            after = textwrap.dedent(
                text[opening.end() : marks[closings[0]].start() if closings else len(text)].strip("\n")
            )
            if (
                not opening[3]
                and _has_code_line(before, _CODE_LINE_START)
                and not _has_code_line(after, _CODE_LINE_START)
            ):
                yield _Block(textwrap.dedent(before.strip("\n")), "", False)
                block_start, mark_index = opening.end(), mark_index + 1
            else:
                yield _Block(after, opening[3], False)
                mark_index = closings[0] + 1 if closings else mark_index + 1
                block_start = marks[mark_index - 1].end()


def _closes(mark: re.Match[str], opening: re.Match[str]) -> bool:
    """Returns whether a mark closes `opening`: no label, the same character, and at least as many of them."""
    return not mark[3] and mark[2][0] == opening[2][0] and len(mark[2]) >= len(opening[2])


_INDENTED_CODE = re.compile(r"([ \t]+)(?:async\s+def|def|class|import|from)\b")


def _indented_lines(lines: list[str]) -> list[str]:
    """Returns the lines of an indented block of code within a text, without its indentation; empty without one."""
    for index, line in enumerate(lines):
        if indent_match := _INDENTED_CODE.match(line):
            block_lines = itertools.takewhile(
                lambda later_line: not later_line.strip() or later_line.startswith(indent_match[1]), lines[index:]
            )
            return textwrap.dedent("\n".join(block_lines)).rstrip().split("\n")
    return []


def _parsed_code(text: str, compiler: _Compiler) -> str | None:
    """Returns the longest beginning that parses, starting at the first line of code; None if no beginning parses."""
    lines = text.strip("\n").split("\n")
    starts = [index for index, line in enumerate(lines) if _CODE_LINE_START.match(line)]
    if not starts:
        lines = textwrap.dedent(text).strip("\n").split("\n")
        starts = [index for index, line in enumerate(lines) if _CODE_LINE_START.match(line)]
    if not starts:
        lines = _indented_lines(lines)
        starts = [0] if lines else []
    lines = lines[starts[0] :] if starts else []
    while lines and compiler.compilations_left > 0:
        code = "\n".join(lines)
        if len(code) > MOST_CODE:
            return None
        line = compiler.error_line(code)
        if line is None:
            return code
        # A beginning that holds the line of the error has the same error, so it is cut before that line.
        lines = lines[: min(max(line or len(lines), 1), len(lines)) - 1]
    return None
