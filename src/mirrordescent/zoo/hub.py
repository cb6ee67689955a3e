"""Entries on the Hugging Face Hub: ``hf://owner/repository/name``.

Needs the extra ``mirrordescent[hub]``.
"""

from pathlib import Path
from typing import Any

from mirrordescent._internal.extras import requires_extra
from mirrordescent.zoo.storage import EntryDamaged, intact

SCHEME = "hf://"


def is_address(name: str | Path) -> bool:
    """Return whether a name is an address on the hub."""
    return str(name).startswith(SCHEME)


def pull(address: str) -> Path:
    """Download an entry and its card, check them, and return the file of the entry.

    The cache of the hub keeps downloaded files, so that they can be used without a network.
    """
    repository, name = _split(address)
    hub = _hub()
    try:
        hub.hf_hub_download(repository, f"{name}.json")
        path = Path(hub.hf_hub_download(repository, f"{name}.safetensors"))
    except Exception as error:  # network errors have no common class
        raise OSError(f"{address} cannot be fetched: {error}") from error
    if not intact(path):
        raise EntryDamaged(
            f"{address} is damaged: its checksum is wrong, or its card belongs to another entry"
        )
    return path


def push(path: str | Path, repository: str, message: str | None = None) -> str:
    """Upload an entry and its card, and return the address of the entry.

    You must be logged in to the hub, with write access to the repository.

    Args:
        path: File of the entry.
        repository: Repository ``owner/name``, which is created if necessary.
        message: Commit message. The default is the name of the entry.
    """
    path = Path(path)
    if repository.count("/") != 1:
        raise ValueError(f"the repository must have the form owner/name, got {repository!r}")
    if not intact(path):
        raise EntryDamaged(f"{path} is damaged, or its card is missing")
    api = _hub().HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        # The card first, so that an interrupted upload leaves no entry without a card.
        for file in (path.with_suffix(".json"), path):
            api.upload_file(
                path_or_fileobj=file,
                path_in_repo=file.name,
                repo_id=repository,
                commit_message=message or path.stem,
            )
    except Exception as error:
        raise OSError(f"{path} cannot be sent to {repository}: {error}") from error
    return f"{SCHEME}{repository}/{path.stem}"


def _split(address: str) -> tuple[str, str]:
    """Return the repository and the name of an entry."""
    owner, _, rest = address.removeprefix(SCHEME).partition("/")
    repository, _, name = rest.partition("/")
    if not (owner and repository and name):
        raise ValueError(
            f"an address on the hub must have the form hf://owner/repository/name, got {address!r}"
        )
    return f"{owner}/{repository}", name.removesuffix(".safetensors")


def _hub() -> Any:
    """Import the client of the hub."""
    with requires_extra("hub", "Using entries of the hub", "huggingface_hub"):
        import huggingface_hub
    return huggingface_hub
