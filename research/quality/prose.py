"""Writes the sentences of docs/research/quality.md and its further tables; research/quality/page.py adds the tables."""

MEAN, TREES, STEADY = "mean log-probability", "LightGBM on logprobs", "LightGBM held back"
TERMS, TERMS_RUN, BLEND_RUN = "logistic on six terms", "logistic on six terms + run", "blend + run"


INTRO = """\
This page shows what the token log-probabilities of an answer say about its quality, on all labelled sets that are
available, in comparison with plain baselines. It also tests the findings of a paper (Keramati et al., early-token
confidence). `research/quality/measure.py page` writes it from `docs/measured/quality.json`; no number is typed by
hand.

**How it was measured.** There are five outer folds by group. In each fold, features, directions, window widths,
penalties, numbers of trees and the best plain baseline are chosen on train and selection rows, calibrators are
fitted on calibration rows, and the numbers come from test rows. Intervals are 95 % intervals from a bootstrap over
groups ({resamples} resamples); differences are paired, on the same resamples. AUROC compares answers of one fold
only, because each fold has models with scales of their own. *Within runs* compares answers of one fold and one run
(model and way of asking); it shows what remains for a user of one model on one task. *Over the strongest control*
compares with the single control that is best on the same answers, which nobody could have chosen beforehand. A star
marks a paired difference above 0 to every control after Holm's correction. The best plain baseline is chosen in each
fold and has a row, but decides nothing. AUPRC, ECE and Brier skill are computed on the calibrated probabilities; ECE
is the expected calibration error over 15 bins of equal mass, given from 1,000 answers on.

**Methods.** *LightGBM on logprobs* are trees on all windows and statistics (full
schema). *LightGBM held back* has small trees with random thresholds whose score may only rise with the level of any
window. *Logistic on six terms* reads mean, minimum, first, sum, worst three in a row and length. *Blend* joins the
latter two by weights fitted on calibration rows. *+ run* adds the run's identity. *Best single feature* is one
window and statistic of the paper with its direction, chosen on learning rows; *early* features are those of the
first 3, 5 and 10 tokens, *full-response* features those of the whole answer. *Lowest group confidence* follows
DeepConf, but uses the tokens' own log-probabilities.
Held-back trees, terms and blend were designed while looking at the folds of token_logprobs_qa, so their numbers are
a little too good there, but not elsewhere. *EPR* and *WEPR* (artefactual's score, fitted here as its authors do)
need the likeliest 15 alternatives of each token: they are measured where these were recorded, on one of our own
sets. *LightGBM on alternatives too* reads the same alternatives through our windows.
"""

VERDICTS = """\
A verdict follows from the interval alone: a finding holds where the whole interval is on its side of 0, does not
hold where the interval is on the other side, and is undecided otherwise. Of many rows, a few are on one side by
chance."""

READING = """\
**What the tables show.**

- Where runs are pooled, level and length reveal the run, and trees without the run's identity use them for this: on
  token_logprobs_qa they gain between runs and lose the order within runs. With an intercept for each run, a logistic
  regression on six numbers is ahead of them there, and its blend with trees ties with it. On the other sets
  sometimes the one is higher and sometimes the other.
- Where answers are long, the level says little, or points in the wrong direction. There the length, the second half
  and the slope matter: trees find them, and one well-chosen feature finds most of this.
- Holding the trees back helps in some sets and harms in others.
- Out of domain, the six terms lose little between tasks and between models. Trees lose more, and from one data set
  to another they are often near chance where the mean is not. Train on the task and the model that the predictor is
  for.
- Answers differ most in their opening tokens, as the paper finds. But in most sets good and bad answers do not differ
  most there, and models are least sure of these tokens, not surest."""

EARLY = """\
**Finding: early windows (first 3, 5, 10 tokens) say as much as the full response, or more.** The table shows the
best early feature minus the best full-response feature, both chosen on learning rows. It also shows trees on 10
tokens minus trees on all tokens, on the answers that have 10. Sets whose median answer has fewer than 20 tokens are
marked (s), because the first ten tokens are most of such an answer."""

SHAPE = """\
**Finding: the shape of the trajectory.** The paper finds that models are sure at the start, then less sure, that a
plateau and a modest recovery follow, and that the spread is widest at the start. Here each answer is stretched to
0-100 %; start and end are its first and last tenth, and the middle is 30 to 70 %. The spread is from the 10th to the
90th percentile over answers; the gap is good minus bad answers, in standard deviations."""

SEEN = """\
The table shows the AUROC after k tokens, among the answers that have k tokens, of trees that read these tokens only
(the schemas `prefix-k`), of their mean, and of trees that read the whole of the same answers."""
