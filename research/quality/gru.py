"""A recurrent network over log-probabilities, as a rival of the quality predictor."""

from dataclasses import dataclass

import numpy as np
import torch

from metaprobe.eval.method_results import Family
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.training.common.roles import Roles, Rows
from metaprobe.training.crossfit.methods import Evidence, Fitted, Scores

GRU = "GRU"


@dataclass(frozen=True, slots=True)
class Gru:
    """A GRU of 16 units over the first 128 log-probabilities; mean of its states and the last one to a logit.

    Learns from train rows; the epoch is chosen on selection rows.
    """

    name: str = GRU
    width: int = 16
    tokens: int = 128
    epochs: int = 30
    patience: int = 5
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        lengths = np.minimum(table.tokens, self.tokens)
        steps = np.zeros((len(table), int(lengths.max()), 2), np.float32)
        for i, values in enumerate(table.logprobs):
            kept = values[: self.tokens]
            steps[i, : len(kept), 0] = np.sqrt(np.clip(-kept, 0, 20))
            steps[i, : len(kept), 1] = 1 / np.arange(1, len(kept) + 1)
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = _Recurrent(self.width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)
        X, T = torch.from_numpy(steps), torch.from_numpy(lengths)
        y = torch.from_numpy(table.y.astype(np.float32))
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits

        def logits(rows: Rows) -> Scores:
            # By length, so that a batch holds little padding.
            order = rows[np.argsort(lengths[rows], kind="stable")]
            out = np.empty(len(table))
            with torch.no_grad():
                for part in np.array_split(order, max(1, len(order) // 256)):
                    out[part] = model(X[part, : lengths[part].max()], T[part]).numpy()
            return out[rows]

        best, kept, waited = np.inf, model.state_dict(), 0
        for _ in range(self.epochs):
            order = roles.train[torch.randperm(len(roles.train), generator=generator).numpy()]
            for part in np.array_split(order, max(1, len(order) // 64)):
                optimizer.zero_grad()
                loss_of(model(X[part, : lengths[part].max()], T[part]), y[part]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            held = float(loss_of(torch.from_numpy(logits(roles.selection)), y[roles.selection].double()))
            if held < best - 1e-4:
                best, waited = held, 0
                kept = {name: value.clone() for name, value in model.state_dict().items()}
            elif (waited := waited + 1) >= self.patience:
                break
        model.load_state_dict(kept)
        found = logits(np.arange(len(table)))
        return Fitted(lambda rows: found[rows], float(auroc(table.y[roles.selection], found[roles.selection])))


class _Recurrent(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(2, width, batch_first=True)
        self.out = torch.nn.Linear(2 * width, 1)

    def forward(self, steps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """(n, T, 2) and (n,) -> (n,) logits."""
        states, _ = self.gru(steps)  # (n, T, width)
        there = torch.arange(steps.shape[1])[None, :] < lengths[:, None]
        mean = (states * there[..., None]).sum(1) / lengths[:, None]
        last = states[torch.arange(len(states)), lengths - 1]
        logits: torch.Tensor = self.out(torch.cat([mean, last], dim=1))[:, 0]
        return logits
