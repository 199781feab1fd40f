"""Where an answer ends because one of its stop texts appears."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class StopTexts:
    """Finds the first stop text in an answer that grows by a token at a time.

    Looked for in decoded text, so that it may begin and end anywhere within tokens, but only the newest tokens are
    decoded at each step: as many as the longest stop text has bytes, for a token has at least one.
    """

    def __init__(self, stops: Sequence[str], decode: Decode) -> None:
        self._stops = stops
        self._decode = decode
        # Some tokenizers drop a space at the beginning of what they decode, or begin within a character.
        self.window = max(len(stop.encode(errors="surrogatepass")) for stop in stops) + 4
        """A stop text that ends in the newest token begins within this many tokens."""

    def cut(self, tokens: Sequence[int]) -> tuple[str, int] | None:
        """The text before the stop text and how many tokens make it up; None where there is no stop text.

        A token that begins before the stop text and ends in it is one of those that make up the text.
        """
        newest = self._decode(tokens[-self.window :])
        if not any(stop in newest for stop in self._stops):
            return None
        text = self._decode(tokens)
        start = max(len(text) - len(newest), 0)
        places = [place for stop in self._stops if (place := text.find(stop, start)) >= 0]
        if not places:
            return None
        return text[: min(places)], self._needed(tokens, text[: min(places)])

    def safe(self, tokens: Sequence[int]) -> int:
        """How many of the tokens stay, whatever comes: the others may turn out to be the beginning of a stop text."""
        window = tokens[-self.window :]
        newest = self._decode(window)
        whole = newest.rstrip("\ufffd")  # a character whose last bytes are still to come
        begun = [n for stop in self._stops for n in range(1, len(stop)) if whole.endswith(stop[:n])]
        return len(tokens) - len(window) + self._needed(window, whole[: len(whole) - max(begun, default=0)])

    def _needed(self, tokens: Sequence[int], text: str) -> int:
        """The fewest tokens whose text begins with `text`, leaving out no more than a window."""
        count = len(tokens)
        while count > max(len(tokens) - self.window, 0) and self._decode(tokens[: count - 1])[: len(text)] == text:
            count -= 1
        return count
