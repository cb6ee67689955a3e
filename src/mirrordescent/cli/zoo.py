"""``mirrordescent zoo``: list, show and verify learned methods."""

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, Entry, aligned, outline, plain, show

app = SubcommandApp()
app.__doc__ = "List, show and verify the learned methods that come with the library."


@app.command(name="list")
def list_entries(json: AsJSON = False) -> None:
    """List the learned methods: name, version, kind, source of the gain, and description.

    The source of the gain says why a method is fast: because of its learned mirror map (geometry),
    or because of its learned step sizes (schedules). It is mixed if the map helps after some
    numbers of steps and harms after others.
    """
    from mirrordescent import zoo

    cards = {name: zoo.card(name) for name in zoo.list()}
    rows = []
    for name, card in cards.items():
        gain = f"gain: {card.gain}" if card.gain else ""
        rows.append((name, _version(zoo.versions(name)), card.kind, gain, card.description))
    show(cards, aligned(rows), json)


def _version(versions: list[int]) -> str:
    newest = f"version {versions[-1]}"
    return newest if len(versions) == 1 else f"{newest} of {', '.join(map(str, versions))}"


@app.command(name="show")
def show_entry(name: Positional[Entry], json: AsJSON = False) -> None:
    """Show the card of a learned method: its use, its training, and its measured results.

    For example: mirrordescent zoo show photo-inpaint-conjugate

    Args:
        name: Name of a zoo entry such as network-spectral or network-spectral@2, a .safetensors
            file, or hf://owner/repository/name.
    """
    from mirrordescent import zoo

    card = zoo.card(name)
    show(card, outline(plain(card)), json)


@app.command(name="verify")
def verify_entries(json: AsJSON = False) -> int:
    """Check the files of the zoo against their checksums and cards.

    The exit code is 1 if a file is damaged.
    """
    from mirrordescent import zoo

    intact = zoo.verify()
    rows = [(name, "ok" if ok else "damaged") for name, ok in intact.items()]
    show(intact, aligned(rows), json)
    return 0 if all(intact.values()) else 1
