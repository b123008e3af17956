"""Grades filled notebooks: each runs on its own, guarded, and its checks are counted.

`scaling-lib grade` is the way in. What it protects against, and what not: docs/adr/0016.
"""
