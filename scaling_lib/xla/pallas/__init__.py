"""Kernels for the TPU's own memories, written in Pallas: `matmul`, plain and with what follows it fused in.

They compile for TPUs, with `tpu.compile` without one, and run anywhere in JAX's TPU interpreter.
"""
