"""The targets of temporal ensembling.

ensemble  EnsembleTargets: the matrix Z and its averages
layout    which arrays it consists of
staging   its rows for the next steps, copied to a GPU ahead of time
file      the same arrays in a memory-mapped file, for a Z larger than memory
"""

from selfens.core.targets.ensemble import IN_MEMORY, EnsembleTargets, Targets, with_latest

__all__ = ["IN_MEMORY", "EnsembleTargets", "Targets", "with_latest"]
