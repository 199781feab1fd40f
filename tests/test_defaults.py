"""An option that is not given has the same default wherever it can be given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USUAL: dict[str, tuple[object, ...]] = {
    "seed": (0,),
    "folds": (5,),
    "resamples": (1000,),
    "level": (0.95,),
    "price": (0.0,),
    "batch_size": (8, 32),  # of an adapter's training, and of a local model
    "bare": (False,),
    "spread": (False,),
    "overwrite": (False, True),
    "signed": (False,),
    "raw": (False,),
    "top_logprobs": (0,),
}
"""Argument or field -> the defaults that it may have. Docs and cards name them once."""
OTHERS = {
    "analyse_study.resamples": 2000,  # of few people
    "feature_associations.resamples": 200,  # of many features, none of which is a figure by itself
    "Stronger.price": 10.0,  # of the model that answers are escalated to, which costs something
}
"""`function.argument` or `class.field` of those that differ, each for a reason."""


def defaults(path: Path) -> Iterator[tuple[str, str, object]]:
    """Yields function or class, argument or field, and the default, which may be a constant of the module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        one.targets[0].id: one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [one.arg for one in (*given.posonlyargs, *given.args)]
            pairs += zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True)
            pairs += zip([one.arg for one in given.kwonlyargs], given.kw_defaults, strict=True)
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
            pairs += [(one.target.id, one.value) for one in fields]  # type: ignore[union-attr]
        else:
            continue
        for name, value in pairs:
            value = constants.get(value.id) if isinstance(value, ast.Name) else value
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield node.name, name, value.value


@pytest.mark.parametrize("room", ["collecting", "eval", "llms", "routing", "training"])
def test_what_is_not_given_is_the_same_everywhere(room: str) -> None:
    found = [(path, *one) for path in sorted((ROOT / room).rglob("*.py")) for one in defaults(path)]
    unusual = []
    for path, owner, name, value in found:
        usual = USUAL.get(name, (value,))
        usual = (OTHERS[key],) if (key := f"{owner}.{name}") in OTHERS else usual
        if value not in usual or type(value) is not type(usual[0]):
            unusual.append(f"{path.name}: {key} = {value!r}")
    assert unusual == []
    assert any(name in USUAL for _, _, name, _ in found)
