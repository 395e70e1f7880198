"""Which of a workload's network interfaces each interface of its spec is. Pure; called by `runtime`.

An interface goes by its name, which is its name in the guest too. One without a name gets `eth<n>`, and an update finds
it again by what the spec says of it: its MAC address, then its bridge or tap device with its static address, then that
device alone, then the order. So a guest keeps its addresses when interfaces are added, removed or put in another order.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from shoal.core.errors import InvalidError
from shoal.core.shape import read_value
from shoal.model.workloads import VmNetwork

_AUTOMATIC = "eth"
_AUTOMATIC_NAME = re.compile(rf"{_AUTOMATIC}(0|[1-9]\d?)")


@dataclass(frozen=True, slots=True)
class KnownNetwork:
    """A network interface that a spec had."""

    name: str
    #: Of its network with user-mode networking; no two interfaces of a guest have the same.
    number: int
    mac: str = ""
    #: Its bridge or tap device. Empty: user-mode networking.
    link: str = ""
    address: str = ""

    @property
    def mac_seed(self) -> str:
        """What its MAC address is made from, when the spec gives none."""
        found = _AUTOMATIC_NAME.fullmatch(self.name)
        return found[1] if found else self.name


#: How an unnamed interface is found again, the best way first. None: not in this way.
_WAYS: tuple[Callable[[KnownNetwork], object], ...] = (
    lambda each: each.mac or None,
    lambda each: (each.link, each.address),
    lambda each: each.link or None,
    lambda each: (),
)


def name_networks(networks: Sequence[VmNetwork], known: Sequence[KnownNetwork]) -> tuple[KnownNetwork, ...]:
    """The interfaces of a spec with their names and numbers, in its order. `known` are those of the spec before."""
    wanted = [KnownNetwork(each.name, -1, each.mac, each.tap or each.bridge, each.static_ip) for each in networks]
    found: dict[int, KnownNetwork] = {}
    for index, each in enumerate(wanted):
        same = next((one for one in known if each.name and one.name == each.name), None)
        if same is not None:
            found[index] = same
    given = {each.name for each in wanted if each.name}
    unnamed = [each for each in known if _AUTOMATIC_NAME.fullmatch(each.name) and each.name not in given]
    for way in _WAYS:
        for index, each in enumerate(wanted):
            key = way(each)
            if each.name or index in found or key is None:
                continue
            same = next((one for one in unnamed if one not in found.values() and way(one) == key), None)
            if same is not None:
                found[index] = same
    taken = {each.number for each in found.values()}
    names = given | {each.name for each in found.values()}
    made: list[KnownNetwork] = []
    for index, each in enumerate(wanted):
        if index in found:
            name, number = found[index].name, found[index].number
        else:
            number = _free_number(each.name, taken, names)
            name = each.name or f"{_AUTOMATIC}{number}"
            taken.add(number)
        made.append(KnownNetwork(name, number, each.mac, each.link, each.address))
    return tuple(made)


def _free_number(name: str, taken: set[int], names: set[str]) -> int:
    """The number of an interface that is new: that in its name if it is free, else the first one that is.

    The name that an unnamed one gets by it is free too.
    """
    own = _AUTOMATIC_NAME.fullmatch(name)
    if own and int(own[1]) not in taken:
        return int(own[1])
    return next(
        number for number in itertools.count() if number not in taken and (name or f"{_AUTOMATIC}{number}" not in names)
    )


def networks_to_json(networks: Sequence[KnownNetwork]) -> bytes:
    """What is stored of the interfaces of a guest."""
    return json.dumps([asdict(each) for each in networks]).encode()


def networks_from_json(text: bytes) -> tuple[KnownNetwork, ...]:
    """The inverse. Raises ValueError for anything else."""
    try:
        return tuple(read_value(tuple[KnownNetwork, ...], json.loads(text)))
    except (InvalidError, RecursionError) as error:
        raise ValueError(f"not network interfaces: {error}") from error
