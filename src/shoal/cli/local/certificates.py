"""The certificates of a local fleet: an authority in its folder, and files for each of its programs and for you.

The authority is made once and never replaced. Files are made on first use, and made again when they expire soon;
everyone who uses them takes the new ones without a restart. Called by `shoal.cli.local.fleet`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.model.identity import Identity
    from shoal.wire.trust.credentials import CredentialPaths

CLUSTER = "default"
OPERATOR = "operator"
FOLDER = "certs"

_ENDS_SOON = timedelta(days=30)


class FleetCertificates:
    """What is in the folder `certs` of a fleet."""

    def __init__(self, base_dir: Path, clock: Clock) -> None:
        self.directory = base_dir / FOLDER
        self._clock = clock

    @property
    def signing_key(self) -> Path:
        """The authority's key."""
        from shoal.wire.trust.credentials import CA_KEY_FILE

        return self.directory / CA_KEY_FILE

    def of_control(self) -> CredentialPaths:
        """The files of the control plane."""
        from shoal.model.identity import Identity, Role

        return self._files(Identity(Role.CONTROL, CLUSTER, "control"))

    def of_agent(self, node_id: str) -> CredentialPaths:
        """The files of an agent."""
        from shoal.model.identity import Identity, Role

        return self._files(Identity(Role.AGENT, CLUSTER, node_id))

    def of_operator(self) -> CredentialPaths:
        """The files of the person who started the fleet."""
        from shoal.model.identity import Identity, Role

        return self._files(Identity(Role.OPERATOR, CLUSTER, OPERATOR))

    def _files(self, identity: Identity) -> CredentialPaths:
        from shoal.wire.trust.authority import issue
        from shoal.wire.trust.credentials import CredentialPaths, load_authority, write_credentials

        directory = self.directory / f"{identity.role}-{identity.name}"
        paths = CredentialPaths.within(directory)
        if not self._is_good(paths, identity):
            self._make_authority()
            authority, trusted = load_authority(self.directory)
            write_credentials(directory, ca=trusted, pair=issue(authority, identity, now=self._clock.wall()))
        return paths

    def _is_good(self, paths: CredentialPaths, identity: Identity) -> bool:
        from shoal.wire.trust.credentials import read_credentials

        now = self._clock.wall()
        try:
            found = read_credentials(paths, now=now)
        except ShoalError:
            return False
        return found.identity == identity and found.not_after - now > _ENDS_SOON

    def _make_authority(self) -> None:
        from shoal.wire.trust.authority import make_authority
        from shoal.wire.trust.credentials import CA_FILE, CA_KEY_FILE, write_authority

        cert, key = self.directory / CA_FILE, self.directory / CA_KEY_FILE
        if key.exists() and not cert.exists():
            key.unlink()  # a process was killed while it made the authority: nothing was signed with this key
        if not cert.exists():
            write_authority(self.directory, make_authority(CLUSTER, now=self._clock.wall()))
