"""Diagnosis of learned maps: run them on problems, and compare the runs with the theorems."""

from mirrordescent.diagnosis.diagnosis_page import markdown as markdown, write as write
from mirrordescent.diagnosis.entries import diagnose_entry as diagnose_entry
