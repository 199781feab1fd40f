"""What a function of `eval/` is not told is what no function is told."""

from defaults import unusual


def test_what_is_not_given_is_the_same_everywhere() -> None:
    assert unusual("eval") == []
