"""``mirrordescent zoo``: what there is, and whether it is whole."""

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, aligned, outline, plain, show

app = SubcommandApp()
app.__doc__ = "List, show and verify the learned methods that come with the library."


@app.command(name="list")
def list_entries(json: AsJSON = False) -> None:
    """List the learned methods, and what their gain is owed to: geometry, or schedules alone."""
    from mirrordescent import zoo

    cards = {name: zoo.card(name) for name in zoo.list()}
    rows = [
        (name, card.kind, f"gain: {card.gain}" if card.gain else "", card.description)
        for name, card in cards.items()
    ]
    show(cards, aligned(rows), json)


@app.command(name="show")
def show_entry(name: Positional[str], json: AsJSON = False) -> None:
    """Show the card of a learned method: what it is for, how it was learned, what it achieves.

    For example: mirrordescent zoo show photo-inpaint-conjugate

    Args:
        name: an entry of the zoo, a .safetensors file, or hf://owner/repository/name.
    """
    from mirrordescent import zoo

    card = zoo.card(name)
    show(card, outline(plain(card)), json)


@app.command(name="verify")
def verify_entries(json: AsJSON = False) -> int:
    """Check the file of every entry against its checksum, and the card beside it.

    The exit code is 1 if a file is damaged.
    """
    from mirrordescent import zoo

    found = zoo.verify()
    show(
        found,
        aligned([(name, "ok" if whole else "damaged") for name, whole in found.items()]),
        json,
    )
    return 0 if all(found.values()) else 1
