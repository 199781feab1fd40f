"""What is not given is the same wherever it can be given: read off every function and class of a room.

Each file is executed anew, so that nothing which other tests have changed is read.
"""

import inspect
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

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
"""Argument -> the defaults that it may have. Docs and cards name them once."""
OTHERS = {
    "Stronger.price": 10.0,  # of the model that answers are escalated to, which costs something
    "analyse_study.resamples": 2000,  # of few people
    "feature_associations.resamples": 200,  # of many features, none of which is a figure by itself
}
"""`function.argument` of those that differ, each for a reason."""


def executed(room: str) -> Iterator[ModuleType]:
    """Yields every module of a room, executed once more under its own name."""
    for path in sorted((ROOT / room).rglob("*.py")):
        name = ".".join(("metaprobe", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "vllm":  # only what sits in vLLM's own classes needs it at import
                raise
            continue
        yield module


def functions_of(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yields what can be called of a module itself, by name: functions, classes and methods."""
    for owner in (module, *(found for found in vars(module).values() if inspect.isclass(found))):
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for name, found in vars(owner).items():
            found = getattr(found, "__func__", found)
            if name != "__init__" and callable(found) and getattr(found, "__module__", None) == module.__name__:
                yield name, found


def unusual(room: str) -> list[str]:
    """Returns each default of the room that is none of the usual ones."""
    found = []
    for module in executed(room):
        for name, function in functions_of(module):
            try:
                given = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
            except (TypeError, ValueError):
                continue
            for parameter in given:
                value, where = parameter.default, f"{name}.{parameter.name}"
                if (
                    parameter.name not in USUAL
                    or value is inspect.Parameter.empty
                    or not isinstance(value, int | float)
                ):
                    continue
                usual = (OTHERS[where],) if where in OTHERS else USUAL[parameter.name]
                if value not in usual or type(value) is not type(usual[0]):
                    found.append(f"{module.__name__}: {where} = {value!r}")
    return found
