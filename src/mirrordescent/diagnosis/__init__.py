"""Diagnosis of learned maps: run them on problems, and compare the runs with the theorems."""

from mirrordescent.diagnosis.diagnosis_page import markdown, write
from mirrordescent.diagnosis.entries import diagnose_entry

__all__ = ["diagnose_entry", "markdown", "write"]
