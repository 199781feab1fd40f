"""Small promises with known answers: prices, and what is read once."""

from metaprobe.llms.forward import prefixes
from metaprobe.llms.pricing import Price, price_of


def test_the_smallest_model_costs_what_its_provider_asks() -> None:
    assert price_of("gpt-4.1-nano", "api.openai.com") == Price(0.1, 0.4)


def test_two_prompts_about_each_of_two_texts_read_each_text_once() -> None:
    one, other = list(range(40)), list(range(100, 140))
    found = prefixes([[*one, 1], [*one, 2], [*other, 3], [*other, 4]])
    assert (found.lengths, found.group) == ((40,) * 4, (0, 0, 1, 1))
