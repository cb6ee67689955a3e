"""Campaigns of faults: ``python -m campaigns NAME --minutes M --seed S``. What they found is docs/results/reliability.md."""
