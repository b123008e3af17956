"""Training at scale: what a step takes under a parallelism plan, in time, memory and money.

A `Plan` says how a step is split, `estimate` prices it. Derived in chapters/05-training.md.
"""

from scaling_lib.training.estimate import Inequality, StepEstimate, estimate
from scaling_lib.training.memory import Memory
from scaling_lib.training.plan import Plan, why_not
from scaling_lib.training.traffic import Traffic

__all__ = ["Inequality", "Memory", "Plan", "StepEstimate", "Traffic", "estimate", "why_not"]
