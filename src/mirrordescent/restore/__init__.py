"""Restoring photographs from files: what is read is written back as it was, but for what was restored."""

from mirrordescent.restore.memory import available, needed
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import DEFAULTS, Plan, plan

__all__ = ["DEFAULTS", "Photo", "Plan", "Restored", "available", "needed", "plan", "read_photo", "restore"]
