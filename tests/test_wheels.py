"""The build of wheels: formats of libraries, checks of wheels, and builds that fail."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from building import compilation, wheels
from building.binary_format import read_binary
from building.targets import TARGETS

from mirrordescent import kernels
from mirrordescent.kernels import sources

ROOT = Path(__file__).parents[1]
TINY = """
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
int DllMainCRTStartup(void *a, unsigned b, void *c) { return 1; }
#else
#define EXPORT __attribute__((visibility("default")))
#endif
EXPORT int one(int x) { return x + 1; }
int two(int x) { return x + 2; }
"""
"""A library that needs no other, since those of Windows take minutes to compile."""
FORMATS = {"linux": "ELF", "darwin": "Mach-O", "win32": "PE"}
needs_zig = pytest.mark.skipif(
    compilation.importlib.util.find_spec("ziglang") is None, reason="needs ziglang"
)


@needs_zig
@pytest.mark.parametrize("name", TARGETS)
def test_formats_processors_and_names(name, tmp_path):
    """A small library is compiled for every target."""
    target = TARGETS[name]
    source = tmp_path / "tiny.c"
    source.write_text(TINY)
    library = tmp_path / "tiny.library"
    command = compilation.zig_compiler(target)
    flags = ["-shared", "-nostdlib", "-O1", "-fvisibility=hidden", str(source), "-o", str(library)]
    subprocess.run([*command, *flags], check=True, capture_output=True)
    binary = read_binary(library.read_bytes())
    assert (binary.format, binary.processor) == (FORMATS[target.system], target.processor)
    assert "one" in binary.exports
    assert "two" not in binary.exports
    assert binary.glibc <= wheels.MANYLINUX_GLIBC


@pytest.mark.skipif(sys.platform != "linux", reason="needs an ELF library")
def test_the_reader_agrees_with_the_loader(compiled):
    binary = read_binary(sources.library_path().read_bytes())
    assert binary.format == "ELF"
    assert binary.exports == sources.symbols(kernels.supported_levels()) | binary.exports
    assert ctypes.util.find_library("c") in binary.libraries
    assert binary.glibc >= (2, 2)


@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"\x7fELF\x02\x01" + bytes(80), b"\x7fELF\x01\x01", b"MZ"]
)
def test_other_files_are_refused(content):
    with pytest.raises(ValueError, match=r"library|ELF"):
        read_binary(content)


def wheel_with(folder, library, tag):
    path = folder / f"mirrordescent-1-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mirrordescent/kernels/_lib/kernels.so", library)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="needs an ELF library")
def test_wheels_that_are_wrong_are_refused(compiled, tmp_path):
    name = next(
        name
        for name, target in TARGETS.items()
        if target.system == "linux"
        and target.processor == read_binary(sources.library_path().read_bytes()).processor
    )
    tag = TARGETS[name].tag
    content = sources.library_path().read_bytes()
    with pytest.raises(wheels.WheelError, match="should be tagged"):
        wheels.check_wheel(wheel_with(tmp_path, content, "any"), name)
    stale = wheel_with(tmp_path, content.replace(sources.source_hash().encode(), b"0" * 32), tag)
    with pytest.raises(wheels.WheelError, match="compiled from other sources"):
        wheels.check_wheel(stale, name)
    renamed = content.replace(b"image_sums_double_baseline", b"image_suns_double_baseline")
    lacking = wheel_with(tmp_path, renamed, tag)
    with pytest.raises(wheels.WheelError, match="lacks image_sums_double_baseline"):
        wheels.check_wheel(lacking, name)
    other = next(name for name in TARGETS if name.startswith("macos"))
    with pytest.raises(wheels.WheelError, match="should contain"):
        wheels.check_wheel(wheel_with(tmp_path, content, TARGETS[other].tag), other)


def build(folder, variables):
    """Build a wheel as pip does, and return it with the messages."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*command, "--directory", str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, list(folder.glob("*.whl"))


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PATH": "", "CC": ""}, "there is no C compiler"),
        ({"CC": "no-such-compiler -O9"}, "no-such-compiler cannot be run"),
        ({"CC": f"{sys.executable} -c 'raise SystemExit(3)'"}, "failed"),
    ],
)
def test_without_a_compiler_the_wheel_has_no_kernels_and_says_why(variables, reason, tmp_path):
    done, (wheel,) = build(tmp_path, variables)
    assert done.returncode == 0
    assert "WITHOUT its compiled kernels" in done.stdout + done.stderr
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert reason in archive.read("mirrordescent/kernels/_lib/failure.txt").decode()
        assert not any(name.endswith(sources.library_name()) for name in archive.namelist())


def test_an_unknown_target_is_an_error(tmp_path):
    done, built = build(tmp_path, {"MIRRORDESCENT_TARGET": "amiga"})
    assert done.returncode != 0
    assert not built
    assert "choose from linux-x86_64" in done.stdout + done.stderr


def test_a_changed_source_makes_the_library_stale(tmp_path):
    """``make kernels`` compiles again exactly if a source has changed."""
    package = tmp_path / "mirrordescent"
    folder = package / "kernels"
    folder.mkdir(parents=True)
    for path in (*sources.sources("c"), *sources.sources("h"), Path(sources.__file__)):
        shutil.copy(path, folder)
    assert not compilation.is_current(package)
    (folder / "_lib").mkdir()
    library = folder / "_lib" / sources.library_name()
    library.write_bytes(b"..." + sources.source_hash().encode() + b"...")
    assert compilation.is_current(package)
    with (folder / "pool.c").open("a") as file:
        file.write("/* changed */\n")
    assert not compilation.is_current(package)


def test_this_installation_has_kernels():
    """Tests of kernels are skipped without them, so their absence must be noticed here."""
    try:
        compilation.local_compiler()
    except compilation.CompilationError:
        pytest.skip("needs a C compiler")
    assert kernels.library() is not None
