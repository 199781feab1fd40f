"""Results as JSON's own types."""

import dataclasses
import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Dataclasses and arrays as JSON's own types; not a number is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        named = ((" -> ".join(map(str, key)) if isinstance(key, tuple) else str(key), of) for key, of in value.items())
        return {name: plain(of) for name, of in named}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
