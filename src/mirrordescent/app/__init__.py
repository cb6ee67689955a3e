"""A local page to restore photographs: ``mirrordescent app``.

The page is served to this computer only, and loads nothing from elsewhere.
"""

from mirrordescent.app.server import AppServer

__all__ = ["AppServer"]
