"""How many rows TamingGS may have, and when (TamingGS Eq. 2; spec §3.1, §3.2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Growth:
    """The curve from ``start`` rows to ``budget`` rows over the densifications of a run.

    Densification number k, from 0, aims at f(k + 1) = S + (B − S)(2u − u²) with u = (k + 1)/n and n = (until − from) //
    every. Where the last one falls short of u = 1, as it does with the published schedule (0.9989·B with an interval of
    500), it aims at the budget itself, so that a run ends with the rows it was promised.
    """

    start: int  # S, rows before training
    budget: int  # B ≥ S, rows at the end
    densify_from: int  # steps; densifications come after this one,
    densify_until: int  # before this one,
    densify_every: int  # and at the multiples of this

    @property
    def count(self) -> int:
        """n, the densifications that the curve is drawn for."""
        return max((self.densify_until - self.densify_from) // self.densify_every, 1)

    def number(self, step: int) -> int:
        """k of the densification after ``step``."""
        return step // self.densify_every - self.densify_from // self.densify_every - 1

    def is_last(self, step: int) -> bool:
        """Whether no densification follows the one after ``step``."""
        return step + self.densify_every >= self.densify_until

    def value(self, done: int) -> int:
        """f(``done``), rows after so many densifications, rounded down."""
        u = min(done / self.count, 1.0)
        return self.start + int((self.budget - self.start) * (2 * u - u * u))

    def target(self, step: int) -> int:
        """Rows that the densification after ``step`` aims at."""
        return self.budget if self.is_last(step) else self.value(self.number(step) + 1)


def budget_of(mode: str, amount: float, points: int, short_limit: int | None, cap: int | None) -> int:
    """B of a scene with ``points`` SfM points: ``amount`` times as many, or ``amount`` itself (spec §3.1).

    ``mode`` is "multiplier" or "final_count". A multiple is at most ``short_limit``, the rows that a short run can
    train, though not below the points there are. ``cap`` holds for either.
    """
    if mode == "final_count":
        budget = int(amount)
    else:
        budget = int(amount * points)
        if short_limit is not None:
            budget = min(budget, max(short_limit, points))
    return max(budget if cap is None else min(budget, cap), 1)
