"""Serving for real, in JAX: caches, a small engine, speculative decoding, and programs judged by the TPU compiler.

Import the module you need. The model is `xla.llama`. Derived in chapters/07-inference.md.
"""
