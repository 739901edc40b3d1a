"""How long exchanges take on a cluster of hosts with several ranks each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """Hosts joined by one network port each; ranks of a host are joined by a faster link."""

    hosts: int = 1
    ranks_per_host: int = 8
    intra_bytes_per_s: float = 16e9  # per rank within a host, each direction
    inter_bytes_per_s: float = 20e9  # per host, each direction (160 Gbit/s)
    latency_s: float = 20e-6  # of one message

    @property
    def ranks(self) -> int:
        """All ranks R."""
        return self.hosts * self.ranks_per_host

    def all_reduce_seconds(self, size: float) -> float:
        """Sum of ``size`` bytes over all ranks: reduce-scatter in the host, ring between hosts, all-gather
        in the host.
        """
        if self.ranks == 1 or size <= 0:
            return 0.0
        g, h = self.ranks_per_host, self.hosts
        inside = 2 * (g - 1) / g * size / self.intra_bytes_per_s + 2 * (g - 1) * self.latency_s
        between = 2 * (h - 1) / h * size / self.inter_bytes_per_s + 2 * (h - 1) * self.latency_s
        return inside + between

    def all_to_all_seconds(self, size: float) -> float:
        """``size`` bytes in all, spread evenly over pairs of ranks; the slower of the two links decides."""
        if self.ranks == 1 or size <= 0:
            return 0.0
        per_rank = size / self.ranks
        inside = per_rank * (self.ranks_per_host - 1) / self.ranks / self.intra_bytes_per_s
        leaving = per_rank * self.ranks_per_host * (self.hosts - 1) / self.hosts / self.inter_bytes_per_s
        return max(inside, leaving) + (self.ranks - 1) * self.latency_s
