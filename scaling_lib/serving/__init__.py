"""A serving system simulated: requests that arrive, wait, are prefilled and decoded, by any of three engines. Needs simpy, NumPy.

Derived in chapters/07-inference.md.
"""

try:
    import simpy  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "simpy":
        raise
    message = "the serving simulator needs simpy: pip install 'scaling-lib[serving]'"
    raise ModuleNotFoundError(message, name="simpy") from None

from scaling_lib.serving.engines import Continuous, Disaggregated, Engine, Static
from scaling_lib.serving.lengths import Empirical, Geometric, Lognormal, Uniform
from scaling_lib.serving.report import Report
from scaling_lib.serving.server import Server
from scaling_lib.serving.simulate import simulate_serving
from scaling_lib.serving.statistics import Figure, Spread
from scaling_lib.serving.workload import Poisson, Regular, Trace, Workload

__all__ = [
    "Continuous",
    "Disaggregated",
    "Empirical",
    "Engine",
    "Figure",
    "Geometric",
    "Lognormal",
    "Poisson",
    "Regular",
    "Report",
    "Server",
    "Spread",
    "Static",
    "Trace",
    "Uniform",
    "Workload",
    "simulate_serving",
]  # fmt: skip
