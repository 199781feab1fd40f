"""Log-probabilities in a plain list, checked and made an array without looking at each in Python."""

import marshal

import numpy as np
from numpy.typing import NDArray

_FLOAT, _SIZE = b"g", 9  # how marshal's version 2 writes a float: this mark, then its eight bytes
_HEADER = 5  # the list's mark and its length
_DOUBLE = np.dtype("<f8")
_LOWEST, _HIGHEST = np.array(-1e38), np.array(0.0)  # float32 ends a little below


def float_list(values: list[object]) -> NDArray[np.float32] | None:
    """The numbers as float32 (T,), T >= 1, where all are floats, more than -1e38 and at most 0; None for anything else.

    NumPy would take True for 1 and "-0.5" for text, and a set of the types costs more than everything else. `marshal`
    writes type and value of each in one pass, so the bytes are taken for numbers only where each one's mark says float.
    What is None here is for the slow way to tell (`openai_format.check_logprobs`).
    """
    try:
        data = marshal.dumps(values, 2)
    except ValueError:  # holds something that marshal does not know
        return None
    count = len(values)
    if not count or len(data) != _HEADER + count * _SIZE or data[_HEADER::_SIZE].count(_FLOAT) != count:
        return None
    given = np.ndarray((count,), _DOUBLE, data, _HEADER + 1, (_SIZE,)).copy()
    inside = np.count_nonzero(given <= _HIGHEST) == count == np.count_nonzero(given > _LOWEST)  # a NaN is not
    return given.astype(np.float32) if inside else None
