"""A hash of everything that defines a problem, for keys of the cache."""

import hashlib
import json

from torch import nn

from mirrordescent._internal.cache import VERSION
from mirrordescent._internal.files import content_of
from mirrordescent.parts import Part, describe


def fingerprint(module: nn.Module, purpose: str) -> str | None:
    """Hash all that defines a problem or another module; None if some of it is neither a tensor nor
    a plain value.

    An operator that is not a module hides its content, for example.
    """
    digest = hashlib.sha256(f"{VERSION} {purpose}".encode())
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}".encode())
        for key, value in sorted(vars(part).items()):
            if key in vars(nn.Module()) or key in ("batch", "sample_shape"):
                continue
            if isinstance(value, Part) and not isinstance(value, nn.Module):  # such as a set
                value = json.dumps(describe(value), sort_keys=True)
            if not isinstance(value, bool | int | float | str | None):
                return None
            digest.update(f"{key}={value!r}".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content_of(tensor) if tensor.ndim else repr(tensor.item()).encode())
    return digest.hexdigest()
