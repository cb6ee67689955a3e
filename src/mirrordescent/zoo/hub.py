"""Entries on the Hugging Face Hub, as ``hf://owner/repository/name``; needs the extra
``mirrordescent[hub]``.
"""

from pathlib import Path
from typing import Any

from mirrordescent._internal.extras import requires_extra
from mirrordescent.zoo.storage import EntryDamaged, intact

SCHEME = "hf://"


def is_address(name: str | Path) -> bool:
    """Tell whether a name is an address on the hub."""
    return str(name).startswith(SCHEME)


def pull(address: str) -> Path:
    """Fetch an entry and its card, check it against the checksum on the card, and return the file.

    What was fetched before is kept in the hub's own cache, and used again without the network.
    """
    repository, name = _split(address)
    hub = _hub()
    try:
        found = [
            hub.hf_hub_download(repository, f"{name}{suffix}")
            for suffix in (".json", ".safetensors")
        ]
    except Exception as error:  # the errors of a network have no class in common
        raise OSError(f"{address} cannot be fetched: {error}") from error
    path = Path(found[-1])
    if not intact(path):
        raise EntryDamaged(
            f"{address} is damaged: it differs from its checksum, or its card is another entry's"
        )
    return path


def push(path: str | Path, repository: str, message: str | None = None) -> str:
    """Send an entry and its card to a repository ``owner/name``, made if need be; return the
    entry's address.

    Access is controlled by the hub's own login.
    """
    path = Path(path)
    if repository.count("/") != 1:
        raise ValueError(f"a repository has the form owner/name, got {repository!r}")
    if not intact(path):
        raise EntryDamaged(f"{path} is damaged, or has no card of its own beside it")
    api = _hub().HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        for file in (path.with_suffix(".json"), path):  # the entry last: with it, it is whole
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
    owner, _, rest = address.removeprefix(SCHEME).partition("/")
    repository, _, name = rest.partition("/")
    if not (owner and repository and name):
        raise ValueError(
            f"an address on the hub has the form hf://owner/repository/name, got {address!r}"
        )
    return f"{owner}/{repository}", name.removesuffix(".safetensors")


def _hub() -> Any:
    with requires_extra("hub", "Using entries of the hub", "huggingface_hub"):
        import huggingface_hub
    return huggingface_hub
