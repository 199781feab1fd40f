"""What version 0.1 said of debates and contests about essays, and what holds: docs/measured/claims_essays.json.

    python -m research.claims.essays

Numbers of 0.1 are those of its stores, which stay: asap-debate-scaffold (then the only way of asking) and essays-caelf.
"""

import json
from typing import Any

from metaprobe.eval.systems import caelf
from research.systems.essays import ATTACKS
from research.systems.figures import ROOT, recorded

CLAIMS = ROOT / "docs" / "measured" / "claims_essays.json"
QUALITY = ROOT / "docs" / "measured" / "quality.json"
SCAFFOLD, ZERO_SHOT = "asap-debate-scaffold", "asap-debate"
CRITICAL = ("advocate, program, critical", "skeptic, program, critical")
MEAN = "mean log-probability"


def main() -> None:
    """Write the file anew."""
    CLAIMS.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")


def rows() -> list[dict[str, str]]:
    """One a statement."""
    debates = json.loads(QUALITY.read_text(encoding="utf-8"))["debates"]
    return [early(debates), confident_copies(debates), arguing(), recognising()]


def early(debates: dict[str, Any]) -> dict[str, str]:
    """The paper's claim on arguments whose opening was prescribed, and on those that were asked for zero-shot."""
    then, now = (verdicts(debates[store]["sets"]) for store in (SCAFFOLD, ZERO_SHOT))
    return {
        "statement": "Whether early windows say more than the whole response, on debates",
        "page": "docs/research/quality.md",
        "before": f"{then}; the prompts prescribed how every argument opens",
        "after": f"asked zero-shot, as in the paper: {now}",
        "verdict": "measured on other arguments: the scaffold fixed the tokens that the claim is about",
        "script": "research/quality/measure.py measure debates",
    }


def verdicts(sets: dict[str, Any]) -> str:
    """How often the difference early less full is above, below and around 0."""
    found = [of["early"]["early_over_full"] for of in sets.values() if "early" in of]
    above, below = sum(low > 0 for _, low, _ in found), sum(high < 0 for _, _, high in found)
    return f"holds in {above}, not in {below}, undecided in {len(found) - above - below} of {len(found)} rows"


def confident_copies(debates: dict[str, Any]) -> dict[str, str]:
    """The mean log-probability ranks critical arguments first: in both ways of asking?"""
    then, now = (
        [debates[store]["sets"][name]["methods"][MEAN]["auroc"] for name in CRITICAL] for store in (SCAFFOLD, ZERO_SHOT)
    )
    stands = all(high < 0.5 for _, _, high in now)
    return {
        "statement": "Arguments that a program finds critical have the highest mean log-probability",
        "page": "docs/research/quality.md",
        "before": "AUROC of the mean for not being critical: " + list_aurocs(then),
        "after": "zero-shot: " + list_aurocs(now),
        "verdict": "stands" if stands else "stands for one of the roles",
        "script": "research/quality/measure.py measure debates",
    }


def list_aurocs(found: list[list[float]]) -> str:
    pairs = zip(("Advocate", "Skeptic"), found, strict=True)
    return ", ".join(f"{role} {mean:.2f} [{low:.2f}, {high:.2f}]" for role, (mean, low, high) in pairs)


def arguing() -> dict[str, str]:
    """In how many items the solver had an attack to solve."""
    asked = [s.value for run in recorded("essays-caelf") for s in run.statements if s.kind == "attack"]
    yes = sum(value == 1 for value in asked)
    found = caelf.summarise_contests(recorded("essays-caelf-levels"))
    by_level = next((row for row in found if row.framework), None)
    after = "no store holds an attack"
    if by_level is not None and by_level.framework is not None:
        first, second = by_level.framework
        after = (
            f"where stated levels decide who attacks whom: {first.attacks:.1f} attacks among {first.arguments:.0f} "
            f"arguments at first, {second.attacks:.1f} after the contest, on {by_level.n} items"
        )
    return {
        "statement": "CAELF's contest was measured with its formal argumentation",
        "page": "docs/research/systems.md",
        "before": "grades before and after the contest, with nothing said of the attacks",
        "after": f"{yes} of {len(asked):,} attack questions were answered yes: nothing was to be solved; {after}",
        "verdict": "fell: the argumentation had never run on a model's own attacks",
        "script": "research/systems/page.py caelf",
    }


def recognising() -> dict[str, str]:
    """Why: can the models recognise an attack?"""
    found = json.loads(ATTACKS.read_text(encoding="utf-8"))
    ways = [row[way]["auroc"] for row in found["rows"] for way in ("plain", "against no context")]
    best = max(ways)
    known = sum(low > 0.5 for _, low, _ in ways)
    return {
        "statement": "A small model answers whether one argument attacks another (Algorithm 1)",
        "page": "docs/research/systems.md",
        "before": "assumed",
        "after": (
            f"{known} of {len(ways)} ways ({len({row['model'] for row in found['rows']})} models, "
            f"{len({row['wording'] for row in found['rows']})} wordings, plain and less no context) distinguish "
            f"{found['attacks']} labelled attacks from {found['supports']} supports with an interval above 0.5; "
            f"the best AUROC is {best[0]:.2f} [{best[1]:.2f}, {best[2]:.2f}]"
        ),
        "verdict": "fell" if not known else "holds for some ways only",
        "script": "research/systems/attack_questions.py",
    }


if __name__ == "__main__":
    main()
