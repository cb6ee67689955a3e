"""Format, processor and exported names of a compiled library: ELF, Mach-O or PE, all 64-bit."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple


class Binary(NamedTuple):
    """A compiled library.

    Args:
        format: ``"ELF"``, ``"Mach-O"`` or ``"PE"``.
        processor: ``"x86_64"`` or ``"aarch64"``.
        exports: Names of exported functions.
        libraries: Names of the libraries that it needs.
        glibc: Newest version of the GNU C library that it needs, (0, 0) if it needs none.
    """

    format: str
    processor: str
    exports: set[str]
    libraries: set[str]
    glibc: tuple[int, int] = (0, 0)


def read_binary(content: bytes) -> Binary:
    """Read the tables of a compiled library.

    Raises:
        ValueError: If the content is not a 64-bit ELF, Mach-O or PE library.
    """
    try:
        if content[:4] == b"\x7fELF":
            return _read_elf(content)
        if content[:4] == b"\xcf\xfa\xed\xfe":
            return _read_macho(content)
        if content[:2] == b"MZ":
            return _read_pe(content)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"the tables of the library cannot be read: {error!r}") from error
    raise ValueError(f"no ELF, Mach-O or PE library: it begins with {content[:4]!r}")


def _text(content: bytes, at: int) -> str:
    """Return the zero-terminated string at a position."""
    return content[at : content.index(b"\0", at)].decode()


class _Section(NamedTuple):
    """A section of an ELF file."""

    kind: int
    address: int
    offset: int
    size: int
    link: int


def _read_elf(content: bytes) -> Binary:
    if content[4:6] != b"\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", content, 18)[0]
    table = struct.unpack_from("<Q", content, 40)[0]
    size, count = struct.unpack_from("<HH", content, 58)
    sections: list[_Section] = []
    for i in range(count):
        _, kind, _, address, offset, length, link = struct.unpack_from(
            "<IIQQQQI", content, table + i * size
        )
        sections.append(_Section(kind, address, offset, length, link))
    exports: set[str] = set()
    libraries: set[str] = set()
    versions: set[str] = set()
    for section in sections:
        names = sections[section.link].offset if section.link < len(sections) else 0
        if section.kind == 11:  # dynamic symbols
            exports |= set(_elf_exports(content, section, names))
        elif section.kind == 6:  # dynamic section
            for at in range(section.offset, section.offset + section.size, 16):
                tag, value = struct.unpack_from("<QQ", content, at)
                if tag == 1:
                    libraries.add(_text(content, names + value))
        elif section.kind == 0x6FFFFFFE:  # versions that are needed
            versions |= set(_elf_versions(content, section, names))
    numbers = [version[6:].split(".") for version in versions if version.startswith("GLIBC_2")]
    newest = max(((int(n[0]), int(n[1])) for n in numbers), default=(0, 0))
    return Binary("ELF", {62: "x86_64", 183: "aarch64"}[machine], exports, libraries, newest)


def _elf_exports(content: bytes, section: _Section, names: int) -> Iterator[str]:
    for at in range(section.offset, section.offset + section.size, 24):
        name, info, _, defined_in = struct.unpack_from("<IBBH", content, at)
        if defined_in and info & 15 == 2 and info >> 4 in (1, 2):  # global functions
            yield _text(content, names + name)


def _elf_versions(content: bytes, section: _Section, names: int) -> Iterator[str]:
    at = section.offset
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", content, at)
        entry = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", content, entry)
            yield _text(content, names + name)
            entry += step
        if not following:
            return
        at += following


def _read_macho(content: bytes) -> Binary:
    processor = {0x01000007: "x86_64", 0x0100000C: "aarch64"}[
        struct.unpack_from("<I", content, 4)[0]
    ]
    count = struct.unpack_from("<I", content, 16)[0]
    exports: set[str] = set()
    libraries: set[str] = set()
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, at)
        if command == 0x2:  # symbols
            symbols, number, names, _ = struct.unpack_from("<IIII", content, at + 8)
            for i in range(number):
                name, kind, section, _, _ = struct.unpack_from("<IBBHQ", content, symbols + 16 * i)
                is_debug = kind & 0xE0
                is_private = kind & 0x10
                if kind & 1 and section and not is_debug and not is_private:
                    exports.add(_text(content, names + name).removeprefix("_"))
        elif command == 0xC:  # a library that is loaded
            libraries.add(_text(content, at + struct.unpack_from("<I", content, at + 8)[0]))
        at += size
    return Binary("Mach-O", processor, exports, libraries)


def _read_pe(content: bytes) -> Binary:
    header = struct.unpack_from("<I", content, 0x3C)[0]
    if content[header : header + 4] != b"PE\0\0":
        raise ValueError("not a PE file")
    machine, section_count = struct.unpack_from("<HH", content, header + 4)
    optional_size = struct.unpack_from("<H", content, header + 20)[0]
    optional = header + 24
    if struct.unpack_from("<H", content, optional)[0] != 0x20B:
        raise ValueError("not a 64-bit PE file")
    ranges: list[tuple[int, int, int]] = []
    for i in range(section_count):
        size, address, _, offset = struct.unpack_from(
            "<IIII", content, optional + optional_size + 40 * i + 8
        )
        ranges.append((address, size, offset))

    def position(address: int) -> int:
        for start, size, offset in ranges:
            if start <= address < start + size:
                return offset + address - start
        raise ValueError(f"address {address:#x} is in no section")

    export_table, _, import_table = struct.unpack_from("<III", content, optional + 112)
    exports: set[str] = set()
    if export_table:
        at = position(export_table)
        count = struct.unpack_from("<I", content, at + 24)[0]
        names = position(struct.unpack_from("<I", content, at + 32)[0])
        for i in range(count):
            exports.add(
                _text(content, position(struct.unpack_from("<I", content, names + 4 * i)[0]))
            )
    libraries: set[str] = set()
    if import_table:
        at = position(import_table)
        while name := struct.unpack_from("<I", content, at + 12)[0]:
            libraries.add(_text(content, position(name)))
            at += 20
    return Binary("PE", {0x8664: "x86_64", 0xAA64: "aarch64"}[machine], exports, libraries)
