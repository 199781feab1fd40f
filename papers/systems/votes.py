"""Votes of several agents or samples: which answer has the most weight."""

from metaprobe.api import Item, canonical


def most_voted(item: Item, answers: dict[str, tuple[str, float]]) -> str:
    """Returns the name of the voter whose answer has the largest total weight. MetaCogAgent, equation 3.

    Among equal totals the heaviest single vote wins, then the first. Empty answers do not count if there is another
    answer. `answers` maps each voter to (answer, weight >= 0).
    """
    forms = {name: canonical(item, answer) for name, (answer, _) in answers.items()}
    voters = [name for name in answers if forms[name]] or list(answers)
    total = {form: sum(answers[v][1] for v in voters if forms[v] == form) for form in {forms[v] for v in voters}}
    return max(voters, key=lambda name: (total[forms[name]], answers[name][1]))
