"""Certificates for tests: an authority in its own directory, and the files of each holder.

    certificates = Certificates(tmp_path)
    transport = GrpcTransport(security=certificates.agent("n1"))

Files of the same identity are replaced when they are asked for again, as a rotation would.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from shoal.core.clock import Clock, SystemClock
from shoal.model.identity import Identity, Role, workload_identity
from shoal.wire.trust.authority import issue, make_authority
from shoal.wire.trust.credentials import write_credentials
from shoal.wire.trust.security import MutualTls


class Certificates:
    """An authority, and what it issues.

    Attributes:
        authority: who signs. Replaced by `replace_authority`.
        trusted: what goes into every `ca.pem` from now on.
    """

    def __init__(self, directory: Path, *, cluster: str = "default", clock: Clock | None = None) -> None:
        self.directory = directory
        self.cluster = cluster
        self._clock = clock or SystemClock()
        self.authority = make_authority(cluster, now=self._clock.wall())
        self.trusted = self.authority.pem

    def replace_authority(self, *, keep_old: bool) -> None:
        """A new authority, trusted beside the old one or in its place."""
        old = self.trusted
        self.authority = make_authority(self.cluster, now=self._clock.wall())
        self.trusted = self.authority.pem + (old if keep_old else b"")

    def agent(self, node_id: str, *, hosts: Sequence[str] | None = None) -> MutualTls:
        """Files of the agent of a node."""
        return self.issue(Identity(Role.AGENT, self.cluster, node_id), hosts=hosts)

    def control(self, name: str = "control", *, hosts: Sequence[str] | None = None) -> MutualTls:
        """Files of a control plane."""
        return self.issue(Identity(Role.CONTROL, self.cluster, name), hosts=hosts)

    def operator(self, name: str = "operator") -> MutualTls:
        """Files of a person."""
        return self.issue(Identity(Role.OPERATOR, self.cluster, name))

    def workload(self, job: str, node_id: str) -> MutualTls:
        """Files of what runs on a node for a job."""
        return self.issue(workload_identity(self.cluster, job=job, node=node_id))

    def issue(
        self,
        identity: Identity,
        *,
        hosts: Sequence[str] | None = None,
        lifetime: timedelta | None = None,
        age: timedelta = timedelta(0),
        trusted: bytes | None = None,
    ) -> MutualTls:
        """Files for anyone; those of the same identity are replaced.

        Args:
            identity: whose.
            hosts: where it is dialled; this machine unless given.
            lifetime: from when it was made.
            age: how long ago that was.
            trusted: what it trusts, instead of `trusted`.
        """
        pair = issue(self.authority, identity, now=self._clock.wall() - age, hosts=hosts, lifetime=lifetime)
        directory = self.directory / f"{identity.role}-{identity.name.replace('/', '-')}"
        paths = write_credentials(directory, ca=trusted or self.trusted, pair=pair)
        return MutualTls(paths.ca, paths.cert, paths.key)
