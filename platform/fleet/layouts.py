"""MIG layouts (pure): which instances a GPU can be cut into, and which layout serves a demand.

A GPU of this kind has memory slices in a row; an instance occupies a run of them that begins at one of the legal starts
of its profile. Two instances never overlap, and there is at most one of a profile with the media engines. Shapes come
from the device itself where its node reports them; :func:`geometry_of` knows the families for those that do not (a GPU
whose MIG mode is off may be silent about them). Sources: NVIDIA's MIG guide for names, counts and sizes; the starts of
the four-slice family are transcribed from it and not yet seen on hardware.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

MIB: Final = 1024**2
#: A demand and a layout are both small; more instances than this fit on no GPU.
MAX_INSTANCES: Final = 8
#: Every GPU that can be cut has four or eight memory slices; the layouts of many more could not be listed.
MAX_SLICES: Final = 8
MAX_PROFILES: Final = 32


@dataclasses.dataclass(frozen=True, order=True)
class Profile:
    """A shape. ``id`` is what a driver calls it, on products of one family; slices count compute and memory."""

    id: int
    name: str
    compute: int
    slices: int
    starts: tuple[int, ...]
    memory_bytes: int = 0
    most: int = MAX_INSTANCES
    media: bool = False


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What a product can be cut into: ``slices`` memory slices in a row, ``compute`` compute slices."""

    slices: int
    compute: int
    profiles: tuple[Profile, ...]

    def profile(self, profile_id: int) -> Profile | None:
        """The profile that a driver calls ``profile_id``."""
        return next((each for each in self.profiles if each.id == profile_id), None)


@dataclasses.dataclass(frozen=True, order=True)
class Placed:
    """One instance: a profile at its first memory slice."""

    start: int
    profile: Profile

    @property
    def end(self) -> int:
        """The first slice after it."""
        return self.start + self.profile.slices


#: A layout, by rising first slice.
Layout = tuple[Placed, ...]


class Illegal(ValueError):
    """A layout that no GPU of the product can have; the text says why."""


# profile id, compute slices, memory slices, most instances, starts; the names carry the family's memory
_SEVEN: Final = (
    (19, 1, 1, 7, (0, 1, 2, 3, 4, 5, 6), False),
    (20, 1, 1, 1, (0, 1, 2, 3, 4, 5, 6), True),
    (15, 1, 2, 4, (0, 2, 4, 6), False),
    (14, 2, 2, 3, (0, 2, 4), False),
    (9, 3, 4, 2, (0, 4), False),
    (5, 4, 4, 1, (0,), False),
    (0, 7, 8, 1, (0,), False),
)
_FOUR: Final = (
    (14, 1, 1, 4, (0, 1, 2, 3), False),
    (21, 1, 1, 1, (0, 1, 2, 3), True),
    (5, 2, 2, 2, (0, 2), False),
    (6, 2, 2, 1, (0, 2), True),
    (0, 4, 4, 1, (0,), False),
)
# Name and MiB as the driver reports them, in the order of the rows above: labels and sizes are never derived from
# each other.
_NAMES: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "A100-40GB": (
        ("1g.5gb", 4864), ("1g.5gb+me", 4864), ("1g.10gb", 9856), ("2g.10gb", 9856), ("3g.20gb", 19968),
        ("4g.20gb", 19968), ("7g.40gb", 40192),
    ),
    "A100-80GB": (
        ("1g.10gb", 9856), ("1g.10gb+me", 9856), ("1g.20gb", 19968), ("2g.20gb", 19968), ("3g.40gb", 40192),
        ("4g.40gb", 40192), ("7g.80gb", 80384),
    ),
    "H100-80GB": (
        ("1g.10gb", 9984), ("1g.10gb+me", 9984), ("1g.20gb", 20096), ("2g.20gb", 20096), ("3g.40gb", 40448),
        ("4g.40gb", 40448), ("7g.80gb", 80896),
    ),
    "H200": (
        ("1g.18gb", 16384), ("1g.18gb+me", 16384), ("1g.35gb", 33024), ("2g.35gb", 33024), ("3g.71gb", 71168),
        ("4g.71gb", 71168), ("7g.141gb", 143104),
    ),
    "A30": (("1g.6gb", 5949), ("1g.6gb+me", 5949), ("2g.12gb", 11971), ("2g.12gb+me", 11971), ("4g.24gb", 24003)),
}  # fmt: skip


def _family(name: str) -> Geometry:
    rows = _FOUR if name == "A30" else _SEVEN
    profiles = tuple(
        Profile(number, label, compute, slices, starts, mib * MIB, most, media)
        for (number, compute, slices, most, starts, media), (label, mib) in zip(rows, _NAMES[name], strict=True)
    )
    return Geometry(4, 4, profiles) if rows is _FOUR else Geometry(8, 7, profiles)


FAMILIES: Final[Mapping[str, Geometry]] = {name: _family(name) for name in _NAMES}


def family_of(product: str) -> str:
    """The family of a product by the driver's name for it, "" when it cannot be cut as far as is known."""
    words = product.upper().replace("-", " ").split()
    if "A30" in words:
        return "A30"
    if "H200" in words:
        return "H200"
    size = next((word for word in words if word in ("40GB", "80GB")), "")
    for name in ("A100", "H100"):
        if any(word == name for word in words) and f"{name}-{size}" in FAMILIES:
            return f"{name}-{size}"
    return ""


def geometry_of(product: str, mig: Mapping[str, Any] | None) -> Geometry | None:
    """What a device can be cut into: by its own words (``facts["mig"]`` of its row), else by its family.

    Drivers tell placements to privileged users alone: profiles without any say nothing about where they may begin.
    """
    told = [each for each in map(_told, (mig or {}).get("profiles", ())) if each.starts and each.slices > 0]
    if told:
        slices = max(start + each.slices for each in told for start in each.starts)
        if slices > MAX_SLICES or len(told) > MAX_PROFILES or min(each.starts[0] for each in told) < 0:
            return None
        return Geometry(slices, max(each.compute for each in told), tuple(told))
    return FAMILIES.get(family_of(product)) if mig is not None else None


_NAME: Final = re.compile(r"([1-7])g\.([0-9]{1,4})gb(\+.*)?")
#: Labels of one shape differ so much between drivers (3g.39gb and 3g.40gb, 1g.23gb and 1g.24gb), those of two do not.
_LABEL_SLACK: Final = 0.05


@functools.lru_cache(maxsize=1024)
def same_shape(wanted: str, name: str) -> bool:
    """True when two names of profiles mean one shape: drivers round the memory in a label differently."""
    one, other = _NAME.fullmatch(wanted), _NAME.fullmatch(name)
    if one is None or other is None:
        return wanted == name
    sizes = int(one[2]), int(other[2])
    near = max(sizes) - min(sizes) <= _LABEL_SLACK * max(sizes)
    return one[1] == other[1] and one[3] == other[3] and near


def most_bytes(name: str, geometry: Geometry | None) -> int:
    """What an instance called ``name`` can hold: of the GPU's own profiles of that shape, else by the label itself,
    which drivers round up."""
    own = [each.memory_bytes for each in (geometry.profiles if geometry else ()) if same_shape(name, each.name)]
    if own:
        return max(own)
    told = _NAME.fullmatch(name)
    return int(told[2]) * 1024**3 if told is not None else 0


def _told(row: Mapping[str, Any]) -> Profile:
    return Profile(
        id=int(row["id"]),
        name=str(row["name"]),
        compute=int(row["compute_slices"]),
        slices=int(row["memory_slices"]),
        starts=tuple(sorted(int(start) for start in row.get("starts") or ())),
        memory_bytes=int(row["memory_bytes"]),
        most=int(row.get("max_instances") or 0) or MAX_INSTANCES,
        media=bool(row.get("media", False)),
    )


def check(geometry: Geometry, wanted: Collection[tuple[int, int]]) -> Layout:
    """The layout of (profile id, first slice) pairs.

    Raises:
        Illegal: no GPU of this kind can have it.
    """
    placed: list[Placed] = []
    for profile_id, start in sorted(wanted, key=lambda pair: pair[1]):
        profile = geometry.profile(profile_id)
        if profile is None:
            raise Illegal(f"This GPU has no profile {profile_id}.")
        if start not in profile.starts:
            legal = ", ".join(map(str, profile.starts))
            raise Illegal(f"{profile.name} cannot begin at slice {start}; it can at {legal}.")
        if placed and start < placed[-1].end:
            raise Illegal(f"{profile.name} at slice {start} overlaps {placed[-1].profile.name} at {placed[-1].start}.")
        placed.append(Placed(start, profile))
    for profile in {each.profile for each in placed}:
        if sum(each.profile == profile for each in placed) > profile.most:
            raise Illegal(f"At most {profile.most} of {profile.name} fit on this GPU.")
    if sum(each.profile.media for each in placed) > 1:
        raise Illegal("Only one instance can hold the media engines.")
    if sum(each.profile.compute for each in placed) > geometry.compute:
        raise Illegal(f"A GPU of this kind has {geometry.compute} compute slices.")
    return tuple(placed)


def maximal(geometry: Geometry, *, double: bool = True) -> tuple[Layout, ...]:
    """Every layout to which nothing can be added, in order; media profiles are left out, as they take the same slices
    as their plain ones. Without ``double``, also those with one compute slice and the memory of two."""
    usable = tuple(each for each in geometry.profiles if not each.media and (double or not _is_double(each)))
    return _maximal(Geometry(geometry.slices, geometry.compute, usable))


def _is_double(profile: Profile) -> bool:
    return profile.compute == 1 and profile.slices == 2


@functools.lru_cache(maxsize=64)
def _maximal(geometry: Geometry) -> tuple[Layout, ...]:
    every = list(_from(geometry, 0))
    return tuple(sorted(each for each in every if not _room(geometry, each)))


def _from(geometry: Geometry, at: int) -> Iterator[Layout]:
    """Every layout of the slices from ``at`` on, gaps included."""
    if at >= geometry.slices:
        yield ()
        return
    for rest in _from(geometry, at + 1):
        yield rest
    for profile in geometry.profiles:
        if at in profile.starts:
            for rest in _from(geometry, at + profile.slices):
                yield (Placed(at, profile), *rest)


def _room(geometry: Geometry, layout: Layout) -> bool:
    taken = {number for each in layout for number in range(each.start, each.end)}
    return any(
        not taken.intersection(range(start, start + profile.slices))
        for profile in geometry.profiles
        for start in profile.starts
    )


# --- from demand


@dataclasses.dataclass(frozen=True)
class Want:
    """One replica that waits for a wall of hardware: bytes, how many compute slices at least, and the one ``profile``
    that it asks for ("": any). ``key`` says whose it is."""

    memory_bytes: int
    compute: int = 1
    profile: str = ""
    key: str = ""

    def takes(self, profile: Profile) -> bool:
        """True when an instance of ``profile`` serves it."""
        return (
            profile.memory_bytes >= self.memory_bytes
            and profile.compute >= self.compute
            and (not self.profile or same_shape(self.profile, profile.name))
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """A layout and how much of the demand it serves: ``served`` wants, ``slices`` of memory that it leaves unused."""

    layout: Layout
    served: int
    unused: int


def choose(geometry: Geometry, demand: Sequence[Want], *, kept: Layout = ()) -> Choice | None:
    """The layout that serves most of ``demand``, the most pressing first; ``None`` when none serves any.

    ``kept`` instances stay where they are. Of layouts that serve as many, the one whose served wants waste the least
    memory, then the one with the largest instances left over, then the first in order: no ties.
    """
    wants = list(demand)[: MAX_INSTANCES * 2]
    best: tuple[tuple[int, int, int], Choice] | None = None
    for layout in maximal(geometry):
        if not set(kept) <= set(layout):
            continue
        free = [each for each in layout if each not in kept]
        served, waste = _serve(free, wants)
        if not served:
            continue
        idle = max((each.profile.slices for each in _left(free, wants)), default=0)
        key = (served, -waste, idle)
        unused = geometry.slices - sum(each.profile.slices for each in layout)
        if best is None or key > best[0]:
            best = key, Choice(layout, served, unused)
    return best[1] if best else None


def _serve(free: Sequence[Placed], wants: Sequence[Want]) -> tuple[int, int]:
    """How many wants find an instance, and the bytes that they leave unused; each takes the smallest that fits."""
    served = waste = 0
    for want, each in _pairs(free, wants):
        served, waste = served + 1, waste + each.profile.memory_bytes - want.memory_bytes
    return served, waste


def _left(free: Sequence[Placed], wants: Sequence[Want]) -> list[Placed]:
    used = {each for _want, each in _pairs(free, wants)}
    return [each for each in free if each not in used]


def _pairs(free: Sequence[Placed], wants: Sequence[Want]) -> Iterator[tuple[Want, Placed]]:
    open_ = sorted(free, key=lambda each: (each.profile.memory_bytes, each.profile.compute, each.start))
    for want in wants:
        for each in open_:
            if want.takes(each.profile):
                open_.remove(each)
                yield want, each
                break


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A GPU that could be cut: what it is cut into now, and how many replicas hold a part of it."""

    key: str
    geometry: Geometry
    layout: Layout = ()
    holders: int = 0


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Cut ``key`` like this; ``must_move`` replicas have to leave it first. ``serves`` says which want gets what."""

    key: str
    layout: Layout
    served: int
    must_move: int
    serves: tuple[tuple[str, Placed], ...] = ()

    @property
    def unused(self) -> Layout:
        """Instances that no want of the demand takes."""
        taken = {placed for _key, placed in self.serves}
        return tuple(placed for placed in self.layout if placed not in taken)


def propose(candidates: Sequence[Candidate], demand: Sequence[Want]) -> Proposal | None:
    """Which GPU to cut how for ``demand``, ``None`` when none helps: what moves least, then what serves most.

    Idle GPUs come first whatever they serve: a layout changes only on a GPU that nobody uses.
    """
    found: list[tuple[tuple[int, int, int, str], Proposal]] = []
    for each in candidates:
        choice = choose(each.geometry, demand)
        if choice is None or choice.layout == each.layout:
            continue
        gain = choice.served - _serve(each.layout, demand)[0]
        if gain > 0:
            size = sum(placed.profile.memory_bytes for placed in choice.layout)
            serves = tuple((want.key, placed) for want, placed in _pairs(choice.layout, demand))
            proposal = Proposal(each.key, choice.layout, choice.served, each.holders, serves)
            found.append(((each.holders, -choice.served, size, each.key), proposal))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def propose_all(candidates: Sequence[Candidate], demand: Sequence[Want], *, most: int = 16) -> list[Proposal]:
    """Proposals one after the other, each for what those before leave unserved; at most ``most``.

    Wants need keys of their own.
    """
    found: list[Proposal] = []
    open_, left = list(candidates), list(demand)
    while left and len(found) < most:
        proposal = propose(open_, left)
        if proposal is None:
            break
        found.append(proposal)
        open_ = [each for each in open_ if each.key != proposal.key]
        served = {key for key, _placed in proposal.serves}
        left = [want for want in left if want.key not in served]
    return found
