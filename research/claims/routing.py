"""What version 0.1 said of the router, and what is left of it: docs/measured/claims_routing.json.

    python -m research.claims.routing

What version 0.1 had stays in the file as `before`; `after` and `verdict` of each data set and budget are made from
docs/measured/routing.json. The other rows, which compare single methods, stay as they are.
"""

import json
import re
from typing import Any

from research.routing import measure as routing
from research.routing.standing import ROUTER, points
from research.systems.figures import ROOT

CLAIMS = ROOT / "docs" / "measured" / "claims_routing.json"
AT = re.compile(r"(?P<set>.+) at (?P<budget>[\d.]+) USD per 1,000: (?P<said>More accurate|No better)")


def main() -> None:
    """Write the file anew."""
    CLAIMS.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")


def rows() -> list[dict[str, str]]:
    """Returns every statement of version 0.1 with what is to be said today."""
    claims = json.loads(CLAIMS.read_text(encoding="utf-8"))
    measured = json.loads(routing.FIGURES.read_text(encoding="utf-8"))
    return [now(claim, measured) for claim in claims]


def now(claim: dict[str, str], measured: dict[str, Any]) -> dict[str, str]:
    """Returns the statement with today's numbers, where it speaks of the router at one budget of one data set."""
    found = AT.fullmatch(claim["statement"].partition(" than ")[0])
    if found is None or found["set"] not in measured:
        return claim
    data = measured[found["set"]]
    (row,) = (row for row in data["rows"] if f"{row['budget']:.3g}" == found["budget"])
    mine, told = row["methods"][ROUTER], row["words"][ROUTER]
    other = row["methods"][told["strongest"]]
    fell = found["said"] == "More accurate" and told["word"] != "ahead"
    after = (
        f"router {mine['accuracy'][0]:.3f} for {mine['cost'][0]:.3g}; strongest control {told['strongest']} "
        f"{other['accuracy'][0]:.3f} for {other['cost'][0]:.3g}, router {points(told['more_accurate_by'])} points, "
        f"p after Holm {told['p_holm']:.3f}; {data['seeds']} splits"
    )
    return {**claim, "after": after, "verdict": f"{'fell' if fell else 'stands'}: {told['word']}"}


if __name__ == "__main__":
    main()
