"""Counts the votes of several agents or samples: the answer with the most weight wins."""

from metaprobe.api import Item, canonical


def most_voted(item: Item, answers: dict[str, tuple[str, float]]) -> str:
    """Returns the name of the voter whose answer has the largest total weight. MetaCogAgent, equation 3.

    Among equal totals the heaviest single vote wins, then the first. Empty answers do not count if there is another
    answer. `answers` maps each voter to (answer, weight >= 0).
    """
    forms = {name: canonical(item, answer) for name, (answer, _) in answers.items()}
    voters = [name for name in answers if forms[name]] or list(answers)
    weight_of_form = {
        form: sum(answers[name][1] for name in voters if forms[name] == form)
        for form in {forms[name] for name in voters}
    }
    return max(voters, key=lambda name: (weight_of_form[forms[name]], answers[name][1]))
