"""The search for the best training plan and the best server: all that can be, priced many at once. Needs NumPy.

Derived in chapters/05-training.md and chapters/07-inference.md.
"""

from scaling_lib.search.best import best_training_plans
from scaling_lib.search.choices import Choices
from scaling_lib.search.pareto import Pareto, serving_pareto
from scaling_lib.search.result import Nearest, Reason, Search

__all__ = ["Choices", "Nearest", "Pareto", "Reason", "Search", "best_training_plans", "serving_pareto"]
