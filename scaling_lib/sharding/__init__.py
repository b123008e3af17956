"""Sharded matmuls: the notation, the collectives that a product needs, what they cost on a slice, and why in words.

Derived in chapters/03-sharding.md.
"""

from scaling_lib.sharding.moves import KINDS
from scaling_lib.sharding.notation import Product, Sharding, dimensions, parse_product
from scaling_lib.sharding.plan import MatmulPlan, Step, cheapest
from scaling_lib.sharding.price import matmul_plan, placed, prices

__all__ = [
    "KINDS",
    "MatmulPlan",
    "Product",
    "Sharding",
    "Step",
    "cheapest",
    "dimensions",
    "matmul_plan",
    "parse_product",
    "placed",
    "prices",
]
