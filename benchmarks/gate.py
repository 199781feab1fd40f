"""What the streaming gate sees and saves on the recorded runs, into docs/production.md.

    python benchmarks/gate.py

Trains a gate on each store by the recipe of `metaprobe train gate`; the figures are of held-out folds by group.
"""

import tempfile
import warnings
from pathlib import Path

from demo_results import write

from metaprobe.checkpoints import UntrustedCheckpoint
from metaprobe.eval.gate import gate_markdown
from metaprobe.training.gate import train_gate

ROOT = Path(__file__).parent.parent
RUNS: dict[str, tuple[str, ...]] = {
    "SmolLM2-135M, MetaCog-Eval, 700 items": ("metacog-every-agent", "alpha"),
    "Qwen2.5-Coder-0.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "beta"),
    "Qwen2.5-Coder-1.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "gamma"),
    "Qwen2.5-Coder-0.5B, GSM8K, 200 problems, answers of Self-Refine": ("gsm8k-self-refine", ""),
}
"""What is measured -> store in recorded/, and agent."""


def main() -> None:
    lines: list[str] = []
    for title, (store, agent) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrustedCheckpoint)
            checkpoint, report = train_gate(
                Path(folder) / "gate",
                [ROOT / "recorded" / store],
                stage="answer",
                agent=agent or None,
                command="benchmarks/gate.py",
            )
        failed = [name for name, audit in checkpoint.manifest.audits.items() if not audit.passed]
        audits = f"failed audits: {', '.join(failed)}" if failed else "all audits passed"
        lines += [f"### {title}", "", *gate_markdown(report).splitlines(), f"- {audits}.".capitalize(), ""]
    write(ROOT / "docs" / "production.md", "gate", lines)


if __name__ == "__main__":
    main()
