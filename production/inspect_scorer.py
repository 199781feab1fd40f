"""Writes verdicts into logs of Inspect (`inspect_ai`), as the score of each sample.

Task(dataset=..., scorer=[match(), verdict("bundled:quality")])    # with logprobs=True
"""

from typing import Any

from metaprobe.api import OnVerdict, QualityPredictor, RecordError, Scored, require, response_of

inspect_scorer: Any = require("inspect_ai.scorer", "inspect-ai>=0.3.285")


@inspect_scorer.scorer(metrics=[inspect_scorer.mean(), inspect_scorer.stderr()])  # type: ignore[untyped-decorator]
def verdict(checkpoint: str = "bundled:quality", log: str = "") -> Any:
    """Returns a scorer that gives each sample the checkpoint's score of its answer, in [0, 1].

    Heads, flag and reasons are in the score's metadata. An answer that cannot be scored stays without a score, with the
    reason, so that no mean counts it. `checkpoint` is a folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`. `log` is
    the file or URL of a score log that also stores each verdict.
    """
    predictor = QualityPredictor.load(checkpoint)
    hand_over: OnVerdict | None = None
    if log:
        from metaprobe.production.monitoring.log import ScoreLog  # not above: it has an extra of its own
        from metaprobe.production.verdict_export import log_verdicts

        hand_over = log_verdicts(ScoreLog.open(log))

    async def score_sample(state: Any, target: Any) -> Any:
        try:
            scored = Scored.of(predictor, response_of(state.output.model_dump(mode="json")))
        except RecordError as reason:
            scored = Scored(None, str(reason))
        if hand_over is not None:
            hand_over(scored)
        metadata = scored.as_metadata()
        if scored.verdict is None or scored.verdict.score is None:
            heads = sorted(scored.verdict.heads) if scored.verdict else []
            explanation = (
                metadata["reason"] or f"no P(right); what the checkpoint gives is in the metadata: {', '.join(heads)}"
            )
            return inspect_scorer.Score.unscored(explanation=explanation, metadata=metadata)
        return inspect_scorer.Score(
            value=float(scored.verdict.score),
            answer=state.output.completion,
            explanation=metadata["reason"] or None,
            metadata=metadata,
        )

    return score_sample
