"""A hash of everything that defines a problem, used as a cache key."""

import hashlib
import json

from torch import nn

from mirrordescent._internal.cache import VERSION
from mirrordescent._internal.files import content_of
from mirrordescent.parts import Part, describe


def fingerprint(module: nn.Module, purpose: str) -> str | None:
    """Hash everything that defines a problem or another module.

    If an attribute is neither a tensor nor a plain value, return None. An example is an operator
    that is not a module, because its content is unknown.

    Args:
        module: Problem or other module.
        purpose: Text that distinguishes different uses of the cache.
    """
    digest = hashlib.sha256(f"{VERSION} {purpose}".encode())
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}".encode())
        for key, value in sorted(vars(part).items()):
            if key in vars(nn.Module()) or key in ("batch", "sample_shape"):
                continue
            if isinstance(value, Part) and not isinstance(value, nn.Module):  # such as a Domain
                value = json.dumps(describe(value), sort_keys=True)
            if not isinstance(value, bool | int | float | str | None):
                return None
            digest.update(f"{key}={value!r}".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(content_of(tensor) if tensor.ndim else repr(tensor.item()).encode())
    return digest.hexdigest()
