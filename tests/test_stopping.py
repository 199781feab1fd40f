"""Stop texts, against a reference that decodes everything at every step."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from metaprobe.llms.generation import StopTexts

ALPHABET = "ab\n é€"  # characters of one, two and three bytes
texts = st.text(ALPHABET, max_size=12)
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3)


def split(text: str, sizes: Sequence[int]) -> list[bytes]:
    """The bytes of a text in pieces of these sizes, again and again: characters may be torn apart."""
    data, pieces = text.encode(), []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def decoded(pieces: list[bytes], tokens: Sequence[int]) -> str:
    return b"".join(pieces[token] for token in tokens).decode(errors="replace")


def first_end(pieces: list[bytes], wanted: list[str]) -> tuple[int, str] | None:
    """The step at which a stop text is complete for the first time, and the text before it."""
    for step in range(1, len(pieces) + 1):
        text = decoded(pieces, range(step))
        if places := [text.index(stop) for stop in wanted if stop in text]:
            return step, text[: min(places)]
    return None


@given(text=texts, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), wanted=stops)
def test_an_answer_ends_where_a_stop_text_first_appears(text: str, sizes: list[int], wanted: list[str]) -> None:
    pieces = split(text, sizes)
    found = StopTexts(wanted, lambda tokens: decoded(pieces, tokens))
    expected = first_end(pieces, wanted)
    steps = expected[0] if expected else len(pieces) + 1
    assert all(found.cut(range(step)) is None for step in range(1, steps))
    if expected is None:
        return
    cut = found.cut(range(steps))
    assert cut is not None
    kept_text, kept = cut
    assert kept_text == expected[1]
    assert decoded(pieces, range(kept)).startswith(kept_text)
    assert kept == 0 or not decoded(pieces, range(kept - 1)).startswith(kept_text)  # no token too many
    # Points that were called safe on the way there were kept.
    assert all(found.safe(range(step)) <= kept for step in range(1, steps))


def test_long_answers_are_not_decoded_whole_at_every_step() -> None:
    asked: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        asked.append(len(tokens))
        return "x" * len(tokens)

    found = StopTexts(["\n\n"], decode)
    assert all(found.cut(range(n)) is None for n in range(1, 500))
    assert max(asked) <= found.window == 6
