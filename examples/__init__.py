"""Families of problems, for which ``mirrordescent learn`` finds solvers."""
