"""The ensemble Z of temporal ensembling: its arithmetic, where its arrays are kept, and how they reach the step."""

from __future__ import annotations

from selfens.core.targets.ensemble import EnsembleTargets, Targets

__all__ = ["EnsembleTargets", "Targets"]
