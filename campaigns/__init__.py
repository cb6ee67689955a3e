"""Fault campaigns: ``python -m campaigns NAME --minutes M --seed S``.

A campaign tries random cases until its time is up, and looks for results that should not occur.
The outcomes are reported in docs/results/reliability.md.
"""
