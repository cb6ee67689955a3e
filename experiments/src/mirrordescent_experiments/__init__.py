"""The experiments of the paper: claims as checks, figures, and the provenance of results."""
