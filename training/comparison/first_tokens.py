"""What can be learned from the first tokens of an answer, for the report's figure of AUROC against tokens seen."""

from contextlib import suppress
from dataclasses import replace

from metaprobe.probes.features import COUNTS, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.training.crossfit.folds import crossfit
from metaprobe.training.crossfit.methods import TREES, Evidence, FeatureTrees, Scores

FIRST_TOKENS = f"{TREES}, first tokens"


def first_token_scores(evidence: Evidence, *, folds: int, seed: int) -> dict[str, dict[int, Scores]]:
    """name -> k -> (n,) out-of-fold scores of the trees on the features of the first k tokens; for `seen_tokens`.

    A k at which the trees find nothing to split is left out; of answers of a token or two that may be every one.
    """
    if not evidence.table.measured:
        return {}
    logprobs = list(evidence.table.logprobs)
    found = {}
    for k in COUNTS:
        prefix = schema(f"prefix-{k}")
        seen = replace(
            evidence,
            features=features(prefix, logprobs),
            feature_names=prefix.names,
            schema=prefix.name,
            states=None,
        )
        with suppress(RecordError):
            found[k] = crossfit(seen, [FeatureTrees()], folds=folds, seed=seed)[TREES].ranking
    return {FIRST_TOKENS: found} if found else {}
