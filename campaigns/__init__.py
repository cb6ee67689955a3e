"""Campaigns of faults: ``python -m campaigns NAME --minutes M --seed S``, reported in
docs/results/reliability.md.
"""
