"""The experiments of the paper: their claims as checks, their figures, and the results' provenance."""
