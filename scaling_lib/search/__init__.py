"""The search for the best plan: all that can be, priced millions a second. Needs NumPy.

Derived in chapters/05-training.md.
"""

from scaling_lib.search.best import best_training_plans
from scaling_lib.search.choices import Choices
from scaling_lib.search.result import Nearest, Reason, Search

__all__ = ["Choices", "Nearest", "Reason", "Search", "best_training_plans"]
