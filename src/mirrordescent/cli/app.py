"""``mirrordescent app``: a local page to restore photographs."""

from __future__ import annotations

from mirrordescent.cli.output import join_argument_lines


@join_argument_lines
def app(port: int = 0, browser: bool = True) -> None:
    """Restore photographs on a local page: drop one, paint a mask, compare, download.

    The page is served to this computer only, and loads nothing from elsewhere. Photographs are
    restored as by mirrordescent solve. Press Ctrl-C to end the app; files that were not downloaded
    are then removed.

    For example:

        mirrordescent app
        mirrordescent app --port 8100 --no-browser

    Args:
        port: Port of the page. By default any free one.
        browser: Whether to open the page in the browser.
    """
    import webbrowser

    from mirrordescent.app import AppServer
    from mirrordescent.cli.output import say
    from mirrordescent.cli.solve import use_kernels

    with AppServer(port, use_kernels(None)) as server:
        print(server.address, flush=True)
        say("mirrordescent: open this address in a browser; end with Ctrl-C")
        if browser:
            webbrowser.open(server.address)
        server.serve()
