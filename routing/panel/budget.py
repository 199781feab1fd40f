"""Keeps what a panel spends at its budget while it answers, by an integral control on the budget that plans are made
for.

A plan's mean spending is learned from some hundred questions. On others it differs: prices have long tails, and
traffic shifts. The control adds up what was spent less than the budget, and makes the next plan for a budget that is
higher by a part of that sum, or lower where too much was spent. The sum is bounded, so that the mean spending tends to
the budget: after n questions it is off by the sum over n.

What questions under way will cost is not known yet. Where many are, each corrects by less: else they would all correct
for the same sum, and the budget would swing between its bounds.
"""

import math
from dataclasses import dataclass

from metaprobe.records.errors import RecordError

RISE_PER_QUESTION = 0.02
"""Rise of the log budget of the next plan for each unspent budget of one question. With this value a lasting deviation
is corrected within some 50 questions."""
MOST_RISE_UNDER_WAY = 1.0
"""Most by which all questions in progress together raise the log budget. A delayed correction above pi / 2 never
settles."""
MOST_CORRECTION = 2.0
"""Largest factor by which a plan's budget is raised or lowered."""
STEPS_PER_E = 64
"""Steps in which a correction moves, per factor e, so that few plans are made."""
MOST_UNSPENT = math.log(MOST_CORRECTION) / RISE_PER_QUESTION
"""Budgets of a question that may be saved up while few are under way. What could not be spent beyond that is not spent
later."""
MOST_OVERSPENT = 1000.0
"""Budgets of a question that are paid back at most. Of an answer that costs more, the rest is not paid back: the mean
spending of n questions stays above the budget by that rest over n."""


@dataclass(slots=True, eq=False)
class BudgetController:
    """Corrects the budget of the next plan by what was spent before. It keeps its state in memory alone."""

    budget: float
    """Mean US dollars for 1,000 questions that are to be spent, above 0."""
    least: float = 0.0
    """US dollars for 1,000 questions that the cheapest plan spends: no plan is made for less."""
    questions: int = 0
    """Questions whose spending is known."""
    spent: float = 0.0
    """US dollars for all of them."""
    unspent: float = 0.0
    """Budgets of a question that were not spent, less those that were spent too much; bounded."""
    under_way: int = 1
    """Questions whose spending was not known when the last plan was made, that plan's among them."""

    def __post_init__(self) -> None:
        """Raises `RecordError` for a budget that is no number above 0."""
        if not 0 < self.budget < math.inf:
            raise RecordError(f"budget is {self.budget!r}; expected US dollars for 1,000 questions, above 0")

    @property
    def correction(self) -> float:
        """Factor by which the budget of the next plan differs from `budget`, from 1 / MOST_CORRECTION to
        MOST_CORRECTION.
        """
        most = math.log(MOST_CORRECTION)
        rise = min(max(self._rise_per_question * self.unspent, -most), most)
        return math.exp(round(rise * STEPS_PER_E) / STEPS_PER_E)

    @property
    def _rise_per_question(self) -> float:
        return min(RISE_PER_QUESTION, MOST_RISE_UNDER_WAY / max(self.under_way, 1))

    def next_budget(self, under_way: int = 1) -> float:
        """Returns the budget that the next question's plan is made for, in US dollars for 1,000 questions.

        `under_way`: questions whose spending is not known yet, the next one among them.
        """
        self.under_way = under_way
        return max(self.budget * self.correction, self.least)

    def paid(self, dollars: float | None, questions: int = 1) -> bool:
        """Counts the cost of one question, in US dollars, and returns True. None, and a cost that is not a number of at
        least 0, are not counted, and give False.

        `questions`: 0 for a further cost of a question that was counted before, such as a late answer.
        """
        if dollars is None or not 0 <= dollars < math.inf:
            return False
        self.questions += questions
        self.spent += dollars
        unspent = self.unspent + questions - 1000 * dollars / self.budget
        most = math.log(MOST_CORRECTION) / self._rise_per_question
        self.unspent = min(max(unspent, -MOST_OVERSPENT), most)
        return True
