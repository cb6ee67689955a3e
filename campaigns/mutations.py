"""Random damage to bytes and to JSON data."""

from __future__ import annotations

from random import Random
from typing import Any

EXPECTED_ERRORS = (ValueError, TypeError, OSError, LookupError, ImportError, MemoryError)
"""Errors that the library raises on purpose, with a message of one line."""

ODD_VALUES: list[Any] = [
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
ODD_KEYS = ("type", "x", "tensor", "same", "p", "\x1b")


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Return content with flipped bits, or with parts removed, repeated or overwritten."""
    damaged = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        start = end = 0
        if damaged:
            start, end = sorted(random.randrange(len(damaged) + 1) for _ in range(2))
        end = min(end, start + random.choice((1, 4, 8, 100, 10**6)))
        match random.randrange(7):
            case 0 | 1 if start < len(damaged):
                damaged[start] ^= 1 << random.randrange(8)
            case 2:
                del damaged[start:]
            case 3:
                del damaged[start:end]
            case 4:
                damaged[start:start] = damaged[start:end]
            case 5:
                fill = (random.choice((0, 255, 32, 123)) for _ in range(end - start))
                damaged[start:end] = bytes(fill)
            case _:
                damaged[start:end] = random.randbytes(end - start)
    return bytes(damaged)


def damage_data(value: Any, random: Random) -> Any:
    """Return nested JSON data with one odd value or one odd or missing key."""
    if random.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return random.choice(ODD_VALUES)
    if isinstance(value, list):
        index = random.randrange(len(value))
        return [*value[:index], damage_data(value[index], random), *value[index + 1 :]]
    key = random.choice(list(value))
    match random.randrange(6):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {**value, random.choice(ODD_KEYS): random.choice(ODD_VALUES)}
        case _:
            return {**value, key: damage_data(value[key], random)}
