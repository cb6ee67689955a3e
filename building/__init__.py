"""Compilation of the C kernels, and wheels that contain them."""
