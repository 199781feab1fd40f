"""What docs/research/quality.md says in words; research/quality/page.py puts the tables between."""

MEAN, TREES, STEADY = "mean log-probability", "LightGBM on logprobs", "LightGBM held back"
TERMS, TERMS_RUN, BLEND_RUN = "logistic on six terms", "logistic on six terms + run", "blend + run"


INTRO = """# Quality from log-probabilities: what it is worth

What the token log-probabilities of an answer say of its quality, on every labelled set there is, beside plain
baselines, with the paper's findings (Keramati et al., early-token confidence) put to the test. This page is written
by `research/quality/measure.py page` from `docs/measured/quality.json`; nothing on it is typed by hand.

**How.** Five outer folds by group; in each, features, directions, window widths, penalties, numbers of trees and the
best plain baseline are chosen on train and selection rows, calibrators on calibration rows, and what is shown comes
from test rows. Intervals are of 95 %, by a bootstrap over groups ({resamples} resamples); differences are paired, on
the same resamples. AUROC compares answers of one fold only, since each fold has models of its own on scales of their
own; *within runs* compares answers of one fold and one run (model and way of asking), which is what is left when a
caller uses one model for one task. *Over the strongest control*: the single control that is best on these very answers,
which nobody could have chosen beforehand; a star where the paired difference to every control is above 0 after Holm's
correction over them. The best plain baseline is chosen in each fold, keeps its row, and decides nothing. AUPRC, ECE and
Brier skill are of the calibrated probabilities; ECE is the expected calibration error over 15 bins of equal mass, given
from 1,000 answers on.

**Methods.** *LightGBM on logprobs* is the quality predictor as `metaprobe train quality` fits it (full schema).
*LightGBM held back* has small trees with random thresholds whose score may only rise with the level of any window.
*Logistic on six terms* knows mean, minimum, first, sum, worst three in a row and length. *Blend* joins the latter two
by weights fitted on calibration rows. *+ run* adds the run's identity. *Best single feature* is one window and
statistic of the paper and its direction, chosen on learning rows; *early* is among the first 3, 5 and 10 tokens,
*full-response* among the whole. *Lowest group confidence* is after DeepConf, on the tokens' own log-probabilities.
The *GRU* has 16 units and reads the first 128 tokens. Held-back trees, terms and blend were designed while looking at
the folds of token_logprobs_qa: there their numbers are a little too good, elsewhere not. *EPR* and
*WEPR* (artefactual's score, fitted here as its authors do) need the likeliest 15 alternatives of each token: they are
measured where those were recorded, on one of our own sets; *LightGBM on alternatives too* reads the same
through our windows.
"""

VERDICTS = """\
A verdict follows from the interval alone: it holds where the whole interval is on the finding's side of 0, does not
hold where it is on the other side, and is undecided else. Of many rows a few are on one side by chance."""

READING = """\
**How the tables read.** Where runs are pooled, level and length reveal the run, and trees that are not given the run
use them for that: on token_logprobs_qa they gain between runs and lose the order within. Given the run (an intercept
each), a logistic regression on six numbers is ahead of them there, and its blend with trees ties with it; on the
other sets now the one and now the other is higher. Where answers are long, the level says little, or the wrong way
round, and what counts is length, the second half, the slope: trees find that, and one single feature, well chosen,
finds most of it. Holding the trees back helps in some sets and harms in others. Out of domain the six terms lose
little between tasks, and between models; trees lose more, and from one data set to another they are often near chance
where the mean is not: train on the task and model it is for. The opening tokens are where answers differ most, as the
paper finds, and yet not where good and bad differ most; and they are the least sure ones, not the surest."""

EARLY = """\
**Early windows (first 3, 5, 10 tokens) say as much as the full response, or more.** The best early feature less the
best full-response feature, both chosen on learning rows; and trees that know 10 tokens less trees that know all, on
the answers that have 10. Sets whose median answer has fewer than 20 tokens are marked (s): there the first ten are
most of it."""

SHAPE = """\
**Shape of the trajectory.** Each answer is stretched to 0-100 %; start and end are its first and last tenth, middle
30 to 70 %. The paper: sure at the start, a decline, a plateau, a modest recovery; the spread widest at the start.
Spread is from the 10th to the 90th percentile over answers; the gap is good less bad, in standard deviations."""

ROLES = """\
**The Advocate's confidence goes with quality more than the Skeptic's.** AUROC on the one's arguments less that on the
other's, essays resampled together."""

SEEN = """\
AUROC among the answers that have k tokens, after k of them: trees that know no more (the schemas `prefix-k`), the mean
so far, and trees that know the whole of the same answers."""

AWAY = """\
Each part is judged by what was learned on the other parts (elsewhere) and on all parts, always from other questions.
AUROC among answers of one part and fold."""

TABLES = """\
The strongest single window feature, beside the paper's tables 3 and 4: rho, for the critical flag AUROC of being
flagged. Held out: chosen with its direction on four fifths of the essays, scored on the others. What counts as good
in the tables after that: the highest level of a dimension, Q = 9, no critical flag."""


DEBATES = """\
**Two ways of asking.** *Zero-shot* is the paper's way and the default: the debaters get their role, and nothing says
how an argument begins. The *scaffold* of version 0.1 showed an example and prescribed the opening, that is, the very
tokens that early windows read. The zero-shot arguments are judged by the program only: in a small trial
the 1.5B judge gave almost every one the same grades, whatever its own reasons said against it.

**How these tables read.** The small judge's labels (scaffold) are hardly predicted by anything that is read off the
log-probabilities, the paper's early windows among them, and they agree with what a program checks about as often as by
chance ([the debates](systems.md#early-token-confidence-in-debate)): that these labels mean something is what is in
doubt here. What the program finds is predicted better, and the other way round than a user would guess: arguments that
copy the essay or the other debater, or quote what does not stand in the essay, are written with the *highest* log-
probabilities, so that the mean log-probability, taken as confidence, ranks them as the best. That holds in both ways of
asking. It also means that a gain over the mean is, where the mean lies below one half, mostly the gain of knowing its
direction: the mean turned about, which takes labels but no model, has one less the AUROC shown, and is what a learned
score has to beat there. Trees and one feature of known direction do alike. The zero-shot arguments are few and of few
essays, so their intervals are wide; many rows share the same arguments."""
