"""Held-out validation: what the library says of published training runs and servers, and how wrong it is.

Efficiencies are fitted on one half of the training runs and tested on the other; for serving, on all results but one. Shown in
chapter 13.
"""

from scaling_lib.validation.blind import blind
from scaling_lib.validation.fits import Assumptions, Figures
from scaling_lib.validation.reached import Reached, reached
from scaling_lib.validation.report import Report, Row, training
from scaling_lib.validation.runs import published, why_unusable
from scaling_lib.validation.scaling import Scaling, korthikanti, strong_scaling
from scaling_lib.validation.serving import Accuracy, ServingReport, ServingRow, inference

__all__ = [
    "Accuracy",
    "Assumptions",
    "Figures",
    "Reached",
    "Report",
    "Row",
    "Scaling",
    "ServingReport",
    "ServingRow",
    "blind",
    "inference",
    "korthikanti",
    "published",
    "reached",
    "strong_scaling",
    "training",
    "why_unusable",
]
