"""Names and shapes of the parameters of all groups, from which roles are guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from mirrordescent.mirrors.roles import Role, Shape, roles_by_name

_REMEDY = "construct md.optim.SpectralDescent(model), or pass roles=md.mirrors.roles_of(model)"


class NamedShapes(NamedTuple):
    """Shapes by name, or by position for tensors without names.

    Attributes:
        shapes: Shapes by name.
        unnamed: Number of tensors without names.
        groups: Number of groups with tensors of two or more axes.
    """

    shapes: dict[str, Shape]
    unnamed: int
    groups: int


class Member(NamedTuple):
    """A parameter of a group, its name or position, and whether the name was given."""

    name: str
    tensor: Tensor
    named: bool
    group: int


def members_of(params: list[Any]) -> list[Member]:
    """Return the parameters of all groups."""
    groups: list[Any] = [params]
    if params and isinstance(params[0], dict):
        groups = [group["params"] for group in params]
    found: list[Member] = []
    for number, group in enumerate(groups):
        members: Iterable[Any] = [group] if isinstance(group, Tensor) else group
        for i, member in enumerate(members):
            named = isinstance(member, tuple)
            name, tensor = member if named else (f"{i} of group {number}", member)
            if isinstance(tensor, Tensor):
                found.append(Member(bare(name), tensor, named, number))
    return found


def bare(name: str) -> str:
    """Return a name without the prefixes of ``torch.compile``."""
    return name.replace("_orig_mod.", "")


def named_shapes(params: list[Any]) -> NamedShapes:
    """Return the names and shapes of the parameters of all groups."""
    members = members_of(params)
    shapes = {member.name: tuple(member.tensor.shape) for member in members}
    unnamed = sum(not member.named for member in members)
    groups = {member.group for member in members if member.tensor.ndim > 1}
    return NamedShapes(shapes, unnamed, len(groups))


def doubts_of_names(named: NamedShapes, found: Mapping[str, Role]) -> str | None:
    """Return a warning if roles by names are doubtful, or None.

    They are if some tensors have no names, if matrices are in several groups, whose order may not
    be that of the layers, or if the two rules that read names disagree.
    """
    if named.unnamed and len(named.shapes) > 1:
        return (
            f"{named.unnamed} parameters have no names, so that embeddings, gates and output "
            f"layers are guessed from shapes and order alone: {_REMEDY}"
        )
    if named.groups > 1:
        ends = [name for name, role in found.items() if role.kind in ("input", "output")]
        return (
            f"input and output layers are taken from the order of the groups, as "
            f"{' and '.join(ends) or 'none'}: {_REMEDY}"
        )
    other = roles_by_name(named.shapes)
    differing = [
        f"{name} (taken as {role.kind}, may be {other[name].kind})"
        for name, role in found.items()
        if role._replace(depth=1) != other[name]._replace(depth=1)
    ]
    if not differing:
        return None
    return f"the roles of these parameters are uncertain: {', '.join(differing)}: {_REMEDY}"
