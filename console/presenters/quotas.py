"""What a preview of quotas says, line by line (pure)."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from console.presenters import amounts
from quotas.amount import ZERO, Amount, Kind
from quotas.preview import Borrower, Change, Preview, Roof, Squeezed
from quotas.usage import Held

#: Names in one line; the rest is counted.
MAX_NAMES: Final = 12
WORDS: Final[dict[Kind, str | Promise]] = {
    Kind.GPU_MILLIS: gettext_lazy("GPUs"), Kind.HBM_BYTES: "HBM", Kind.REPLICAS: gettext_lazy("Replicas"),
    Kind.STORAGE_BYTES: gettext_lazy("Storage"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Named:
    """A tenant or an endpoint, and what is said of it."""

    name: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Effect:
    """One line: ``glyph`` is a state of the kind "event"; behind ``text`` stand amounts, or names and how many more."""

    glyph: str
    text: str
    amounts: tuple[str, ...] = ()
    names: tuple[Named, ...] = ()
    more: int = 0


def number(kind: Kind, amount: Amount) -> str:
    """``amount`` without its kind: ``2.5``, ``3``, ``1.5 GiB``, ``no limit``."""
    if amount.number is None:
        return _("no limit")
    if kind is Kind.GPU_MILLIS:
        return f"{amount.number / 1000:g}"
    if kind is Kind.REPLICAS:
        return f"{amount.number:,}"
    return str(amounts.memory(amount.number))


def counted(kind: Kind, amount: Amount) -> str:
    """``amount`` with its kind: ``2.5 GPUs``, ``1 replica``, ``1.5 GiB HBM``."""
    shown = number(kind, amount)
    if kind is Kind.GPU_MILLIS:
        return ngettext("%(n)s GPU", "%(n)s GPUs", 1 if amount.number == 1000 else 2) % {"n": shown}
    if kind is Kind.REPLICAS:
        return ngettext("%(n)s replica", "%(n)s replicas", amount.number or 0) % {"n": shown}
    if kind is Kind.HBM_BYTES:
        return f"{shown} HBM"
    return _("%(amount)s of storage") % {"amount": shown}


def effects(found: Preview) -> list[Effect]:
    """What a change would do; one line that nobody would be worse off where it hurts nobody."""
    lines = [*_own(found.changes), *_claims(found.reclaimable, found.may_lose)]
    roof = [_under(found.group)] if found.group is not None else []
    if not found.hurts:
        return [Effect("done", _("Nobody would be worse off.")), *roof]
    return [*lines, *roof, *_squeezed(found.members)]


def _own(changes: Sequence[Change]) -> Iterable[Effect]:
    over = tuple(counted(change.after.kind, change.over) for change in changes if change.over != ZERO)
    if over:
        yield Effect("attention", _("Held above the new limit, and kept; nothing more is given:"), over)
    full = tuple(str(WORDS[change.after.kind]) for change in changes if change.closes and change.over == ZERO)
    if full:
        yield Effect("attention", _("Nothing more could be taken of:"), full)


def _claims(reclaimable: Sequence[Held], may_lose: Sequence[Borrower]) -> Iterable[Effect]:
    if reclaimable:
        several = len({held.tenant for held in reclaimable}) > 1
        names = [Named(f"{held.tenant}/{held.label}" if several else held.label) for held in reclaimable]
        yield _named(_("Others could claim back, in this order:"), names)
    if may_lose:
        names = [Named(one.slug) for one in may_lose]
        yield _named(_("Tenants above their guarantee, who may have to give way:"), names)


def _under(roof: Roof) -> Effect:
    """What the group would hold with the tenant that comes into it, of what has a limit there."""
    limited = [change for change in roof.changes if not change.after.limit.unlimited]
    over = [change for change in limited if change.over != ZERO]
    full = [change for change in limited if change.closes and change.over == ZERO]
    name = {"name": roof.name}
    if not limited:
        return Effect("done", _("The group %(name)s has no limits.") % name)
    if over:
        text = _("The group %(name)s would hold more than it may, and keep it; nothing more is given in it:")
        return Effect("attention", text % name, _beside_limits(over))
    if full:
        return Effect("attention", _("The group %(name)s would be full:") % name, _beside_limits(full))
    return Effect("done", _("The group %(name)s would hold, of its limits:") % name, _beside_limits(limited))


def _beside_limits(changes: Iterable[Change]) -> tuple[str, ...]:
    return tuple(
        f"{WORDS[change.after.kind]} {number(change.after.kind, change.after.used)} / "
        f"{number(change.after.kind, change.after.limit)}"
        for change in changes
    )


def _squeezed(members: Sequence[Squeezed]) -> Iterable[Effect]:
    if members:
        yield _named(
            _("Tenants of the group that keep what they hold and could take nothing more:"),
            [Named(one.slug, _(", ").join(_kept(change) for change in one.changes)) for one in members],
        )


def _kept(change: Change) -> str:
    return counted(change.after.kind, change.after.used)


def _named(text: str, names: Sequence[Named]) -> Effect:
    return Effect("attention", text, names=tuple(names[:MAX_NAMES]), more=max(0, len(names) - MAX_NAMES))
