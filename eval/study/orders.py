"""In which order a participant meets the conditions, and under which code the answers are kept."""

import secrets
from collections.abc import Sequence

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Of codes: no two characters that look alike in handwriting."""


def balanced_orders(conditions: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the rows of a Latin square in which every condition also follows every other equally often.

    Participant i takes row i modulo their number. An even number of conditions needs as many rows, an odd one twice as
    many: three conditions have six. Williams 1949, Australian Journal of Scientific Research A 2: 149-168.
    """
    k = len(conditions)
    if k < 2 or len(set(conditions)) < k:
        raise ValueError(f"conditions are {list(conditions)}; expected two or more, each once")
    first = [0, *((step + 1) // 2 if step % 2 else k - step // 2 for step in range(1, k))]  # 0, 1, k-1, 2, k-2, ...
    rows = [[(entry + shift) % k for entry in first] for shift in range(k)]
    if k % 2:
        rows += [row[::-1] for row in rows]
    return tuple(tuple(conditions[entry] for entry in row) for row in rows)


def draw_code() -> str:
    """Returns a code such as `K7QD-2MXA`: 39 random bits, so that two participants never share one by chance."""
    drawn = "".join(secrets.choice(ALPHABET) for _ in range(8))
    return f"{drawn[:4]}-{drawn[4:]}"
