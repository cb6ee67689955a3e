"""Text with control characters made visible."""

import unicodedata

# Unicode categories: control and format characters, surrogates, line and paragraph separators.
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    r"""Return text with control characters escaped, so that it cannot control the terminal.

    Line breaks and tabs are kept.

    >>> print(visible("two\nlines, \x1b[2J, 5 °C"))
    two
    lines, \u001b[2J, 5 °C
    """
    return "".join(each if each in "\n\t" else _escape(each) for each in text)


def visible_name(path: object) -> str:
    r"""Return a file name as one line of valid Unicode.

    Line breaks, other control characters and bytes that are not UTF-8 are escaped.

    >>> print(visible_name("two\nlines.png"), visible_name("caf\udce9.png"))
    two\u000alines.png caf\udce9.png
    """
    return "".join(map(_escape, str(path)))


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"\\u{ord(character):04x}"
