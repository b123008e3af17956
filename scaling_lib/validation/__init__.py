"""Held-out validation: what `training.estimate` says of published training runs, and how wrong it is.

Efficiencies are fitted on one half of the runs and tested on the other. Shown in chapter 13.
"""

from scaling_lib.validation.blind import blind
from scaling_lib.validation.fits import Assumptions, Figures
from scaling_lib.validation.report import Report, Row, training
from scaling_lib.validation.runs import published, why_unusable
from scaling_lib.validation.scaling import Scaling, korthikanti, strong_scaling

__all__ = [
    "Assumptions",
    "Figures",
    "Report",
    "Row",
    "Scaling",
    "blind",
    "korthikanti",
    "published",
    "strong_scaling",
    "training",
    "why_unusable",
]
