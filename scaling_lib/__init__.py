"""Predict the time, memory and cost of language models on TPUs and GPUs.

Import the module that carries the idea you need: `scaling_lib.hardware` for chips and slices,
`scaling_lib.roofline` for time from FLOPs and bytes. The core needs the standard library only.
"""

__version__ = "0.1.0"
