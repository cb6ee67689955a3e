"""Work of the app that lasts until it is cancelled."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from mirrordescent.app.work import Work


@pytest.fixture
def held_work(monkeypatch):
    """Return a context in which work waits at its first check until it is cancelled.

    Work on a small photograph can end before a loaded machine has sent the request to cancel it.
    """
    listen = Work.listen

    def listen_and_wait(work, label, done, total):
        listen(work, label, done, total)
        if label == "solving":
            work.cancelled.wait(60)

    @contextmanager
    def held():
        with monkeypatch.context() as patch:
            patch.setattr(Work, "listen", listen_and_wait)
            yield

    return held
