"""Methods whose whole iteration is one kernel."""

from mirrordescent.methods.fused.method import Fused

__all__ = ["Fused"]
