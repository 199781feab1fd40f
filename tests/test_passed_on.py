"""Small promises with known answers: prices, exact p-values, options of a study's plan, and what is read once."""

import numpy as np
import pytest
from click.testing import CliRunner, Result

from metaprobe.cli import main
from metaprobe.eval.study.choice_tests import paired_p
from metaprobe.llms.prefix import prefixes
from metaprobe.llms.pricing import Price, price_of

SHARES = "a=0.5,b=0.2,c=0.3"


def plan(*options: str) -> Result:
    return CliRunner().invoke(main, ["study", "power", "--shares", SHARES, *options])


def test_the_smallest_model_costs_what_its_provider_asks() -> None:
    assert price_of("gpt-4.1-nano", "api.openai.com") == Price(0.1, 0.4)


def test_a_mean_difference_of_one_that_all_share_has_the_exact_p_of_two_sign_patterns() -> None:
    assert paired_p(np.ones(10)) == pytest.approx(2 / 2**10)


def test_two_prompts_about_each_of_two_texts_read_each_text_once() -> None:
    one, other = list(range(40)), list(range(100, 140))
    found = prefixes([[*one, 1], [*one, 2], [*other, 3], [*other, 4]])
    assert (found.lengths, found.group) == ((40,) * 4, (0, 0, 1, 1))


def test_readers_who_repeat_themselves_need_a_larger_study() -> None:
    apart, alike = plan("--likeness", "0"), plan("--likeness", "0.9")
    assert apart.exit_code == alike.exit_code == 0
    assert apart.output.splitlines()[1:] != alike.output.splitlines()[1:]
    assert not apart.output.endswith("\n\n")


def test_an_option_outside_its_range_is_refused_with_the_range() -> None:
    for option, value in (("--likeness", "1"), ("--seed", str(2**32))):
        refused = plan(option, value)
        assert refused.exit_code == 2
        assert "is not in the range" in refused.output
