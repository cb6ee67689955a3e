"""Classes of problems to find solvers for."""
