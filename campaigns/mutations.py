"""Something else in the place of bytes and of plain data."""

from __future__ import annotations

from random import Random
from typing import Any

CLEAR = (
    ValueError,
    TypeError,
    OSError,
    LookupError,
    ImportError,
    MemoryError,
)  # errors that are one line
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3 * 10**9,
    10**30,
    -0.5,
    1e30,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "..",
    "a/b",
    "\x1b[2J",
    "os:system",
    "é" * 50,
    [],
    [[]],
    [1, 2],
    ["x"],
    {},
    {"type": "Euclidean"},
    {"tensor": "x"},
    {"same": ""},
    {"type": 3},
    {"dict": []},
    [0.1] * 100,
]


def damaged(content: bytes, random: Random) -> bytes:
    """Return content with bits flipped, cut, repeated, exchanged, or filled with something else."""
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        at, end = sorted(random.randrange(len(made) + 1) for _ in range(2)) if made else (0, 0)
        end = min(end, at + random.choice((1, 4, 8, 100, 10**6)))
        match random.randrange(7):
            case 0 | 1 if at < len(made):
                made[at] ^= 1 << random.randrange(8)
            case 2:
                del made[at:]
            case 3:
                del made[at:end]
            case 4:
                made[at:at] = made[at:end]
            case 5:
                made[at:end] = bytes(random.choice((0, 255, 32, 123)) for _ in range(end - at))
            case _:
                made[at:end] = random.randbytes(end - at)
    return bytes(made)


def changed(value: Any, random: Random) -> Any:
    """Return nested data with something odd somewhere in it."""
    if random.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return random.choice(ODD)
    if isinstance(value, list):
        at = random.randrange(len(value))
        return [*value[:at], changed(value[at], random), *value[at + 1 :]]
    key = random.choice(list(value))
    match random.randrange(6):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {
                **value,
                random.choice(("type", "x", "tensor", "same", "p", "\x1b")): random.choice(ODD),
            }
        case _:
            return {**value, key: changed(value[key], random)}
