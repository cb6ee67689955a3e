from __future__ import annotations

import functools
import hashlib
import http.server
import threading

import pytest

from mirrordescent.data import DataDamaged, DataMissing, FileStatus, data_directory, registry
from mirrordescent.data.catalogue import DATASETS, DataFile, Dataset

CONTENT = b"twelve bytes"
SIZE = 12


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Serve a folder over HTTP on this machine."""
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def register(monkeypatch):
    """Add a dataset of one file to the registry."""

    def add(url=None, size: int | None = SIZE):
        file = DataFile("sub/file.bin", size, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", url)
        entry = Dataset("toy", "a toy", (file,), "free", "nobody", "https://example.org/toys")
        monkeypatch.setitem(DATASETS, "toy", entry)

    return add


def put(directory, content):
    path = directory / "toy" / "sub" / "file.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_directory_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(tmp_path / "named"))
    assert data_directory(tmp_path / "chosen") == tmp_path / "chosen"
    assert data_directory() == tmp_path / "named"
    monkeypatch.delenv("MIRRORDESCENT_DATA")
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "data"


def test_a_sound_file_is_returned(tmp_path, register):
    register()
    path = put(tmp_path, CONTENT)
    assert registry.require("toy", "sub/file.bin", tmp_path) == path
    assert registry.verify("toy", tmp_path) == {"sub/file.bin": FileStatus.OK}


def test_a_missing_file_says_what_to_put_where(no_data, register):
    register()
    with pytest.raises(DataMissing) as caught:
        registry.require("toy", "sub/file.bin")
    message = str(caught.value)
    for part in (
        str(no_data / "toy" / "sub" / "file.bin"),
        "MIRRORDESCENT_DATA",
        "example.org",
        "12 bytes",
    ):
        assert part in message
    assert isinstance(caught.value, FileNotFoundError)
    assert registry.verify("toy") == {"sub/file.bin": FileStatus.MISSING}
    assert not no_data.exists()


@pytest.mark.parametrize(
    ("content", "fault"),
    [(CONTENT[:5], "5 bytes instead of 12"), (CONTENT.upper(), "sha256 checksum")],
)
def test_a_damaged_file_is_named_with_its_fault(tmp_path, register, content, fault):
    register()
    path = put(tmp_path, content)
    with pytest.raises(DataDamaged, match=fault) as caught:
        registry.require("toy", "sub/file.bin", tmp_path)
    assert str(path) in str(caught.value)
    assert registry.verify("toy", tmp_path) == {"sub/file.bin": FileStatus.DAMAGED}


def test_a_repaired_file_is_looked_at_again(tmp_path, register):
    register(size=None)
    put(tmp_path, b"cut off")
    with pytest.raises(DataDamaged):
        registry.require("toy", "sub/file.bin", tmp_path)
    path = put(tmp_path, CONTENT)
    assert registry.require("toy", "sub/file.bin", tmp_path) == path


def test_an_absent_file_is_fetched(no_data, register, serve):
    folder, address = serve
    (folder / "file.bin").write_bytes(CONTENT)
    register(url=f"{address}file.bin")
    path = registry.require("toy", "sub/file.bin")
    assert path == no_data / "toy" / "sub" / "file.bin"
    assert path.read_bytes() == CONTENT


def test_another_file_at_the_address_is_refused(no_data, register, serve):
    folder, address = serve
    (folder / "file.bin").write_bytes(b"an error page")
    register(url=f"{address}file.bin")
    with pytest.raises(DataDamaged, match="does not serve"):
        registry.require("toy", "sub/file.bin")
    assert registry.verify("toy") == {"sub/file.bin": FileStatus.MISSING}


def test_a_failed_fetch_says_so_and_what_to_do(no_data, register, serve):
    register(url=f"{serve[1]}not-there.bin")
    with pytest.raises(DataMissing, match=r"failed .*404.*Put sub/file.bin"):
        registry.require("toy", "sub/file.bin")


def test_the_first_alternative_that_is_there_is_taken(tmp_path, monkeypatch):
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    files = tuple(DataFile(name, None, digest) for name in ("a", "b", "c"))
    monkeypatch.setitem(DATASETS, "toy", Dataset("toy", "", files, "", "", ""))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "b").write_bytes(CONTENT)
    assert registry.require_any("toy", ("a", "b", "c"), tmp_path).name == "b"
    with pytest.raises(DataMissing, match=r"Put c "):
        registry.require_any("toy", ("a", "c"), tmp_path)


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="'omniglott'; did you mean 'omniglot'"):
        registry.describe("omniglott")
    with pytest.raises(ValueError, match=r"did you mean 'cbsd68.txt'"):
        registry.require("bsds500", "cbsd86.txt")


@pytest.mark.parametrize("name", registry.names())
def test_every_dataset_tells_terms_origin_and_well_formed_checksums(name):
    entry = registry.dataset(name)
    text = registry.describe(name)
    assert entry.terms in text
    assert entry.citation in text
    assert entry.source in text
    for file in entry.files:
        algorithm, digest = file.checksum.split(":")
        assert len(bytes.fromhex(digest)) == hashlib.new(algorithm).digest_size


@pytest.mark.parametrize("name", registry.names())
def test_real_files_match_the_registry(name, real_data):
    statuses = registry.verify(name, real_data)
    assert FileStatus.DAMAGED not in statuses.values()
    assert FileStatus.OK in statuses.values()
