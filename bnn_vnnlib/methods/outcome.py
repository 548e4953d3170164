"""What the methods of the decision give together; apart from them, so that who shows it need not load them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bnn_vnnlib.methods.method import NONE


@dataclass(frozen=True, eq=False)
class DecisionOutcome:
    """Per item: bounds on the rows (N, R) and on the outputs (N, m), refuted (N,), violated (N,) at point (N, n).

    names : of what was tried, in the order of its turns
    by : (N, M) twice: which of these gave some bound of the item's lower and of its upper side, or proved a row false
        without any
    draws : behind bounds with a stated confidence: counted, and those of them that say nothing; else None
    """

    row_lower: Tensor
    row_upper: Tensor
    lower: Tensor
    upper: Tensor
    refuted: Tensor
    violated: Tensor
    point: Tensor
    names: tuple[str, ...]
    by: tuple[Tensor, Tensor]
    draws: tuple[int, int] | None = None

    @property
    def together(self) -> tuple[list[str], list[str]]:
        """The methods behind the lower and the upper bounds of all items."""
        lower, upper = (
            list(dict.fromkeys(name for name, one in zip(self.names, used.any(0).tolist(), strict=True) if one))
            for used in self.by
        )
        return lower, upper

    @property
    def methods(self) -> tuple[list[str], list[str]]:
        """The methods behind each item's lower and upper bounds, joined by commas; "none" for nobody."""
        lower, upper = (self._joined(used) for used in self.by)
        return lower, upper

    def _joined(self, used: Tensor) -> list[str]:
        if not self.names:
            return [NONE] * len(used)
        kinds, place = used.unique(dim=0, return_inverse=True)
        chosen = ([name for name, one in zip(self.names, kind, strict=True) if one] for kind in kinds.tolist())
        texts = [", ".join(dict.fromkeys(names)) or NONE for names in chosen]
        return [texts[index] for index in place.tolist()]
