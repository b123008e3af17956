"""Programs whose collectives are written by hand, in `jax.shard_map`, beside what the compiler makes by itself.

Modules: `layers` (one Transformer layer in JAX's three ways of sharding), `collective_matmul`, `ring_attention` and `dispatch`
(tokens to their experts and back). The functions of the last three work on a device's own part.
"""
