#!/usr/bin/env bash
# Makes sure that the real services the tests talk to are installed. Called by `make test`. Starts and stops nothing:
# the tests run private ones (tests/services). Without root a missing one is only named; its tests are skipped then,
# and fail with CI=true.
set -euo pipefail

missing=()

# PostgreSQL: what tests/services/postgres.py looks for.
if [ -z "${SHOAL_TEST_POSTGRES:-}" ] && ! command -v initdb >/dev/null &&
    ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
    missing+=(postgresql)
fi

# The command line of SQLite: the steps of docs/backup-and-restore.md are run as they stand there.
if ! command -v sqlite3 >/dev/null; then
    missing+=(sqlite3)
fi

# Graphviz: `visualize` draws with it.
command -v dot >/dev/null || missing+=(graphviz)

# Networks that can be cut (tests/services/network.py). Only root can make them.
if [ "$(id -u)" = 0 ]; then
    command -v ip >/dev/null || missing+=(iproute2)
    command -v iptables >/dev/null || missing+=(iptables)
fi

# Containers, compose projects and VMs (tests/services/engine.py). Only root can run the engine that the tests start.
if [ "$(id -u)" = 0 ]; then
    command -v podman >/dev/null || missing+=(podman)
    command -v runc >/dev/null || missing+=(runc)
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v catatonit >/dev/null || [ -x /usr/libexec/podman/catatonit ] || missing+=(catatonit)
    [ -x /usr/lib/podman/netavark ] || missing+=(netavark)
    [ -x /usr/lib/podman/aardvark-dns ] || missing+=(aardvark-dns)
fi

# QEMU, and what its guests are made with (scripts/build_guests.sh).
if [ "$(id -u)" = 0 ]; then
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v qemu-img >/dev/null || missing+=(qemu-utils)
    for program in mmdebstrap cpio lz4; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    command -v mke2fs >/dev/null || missing+=(e2fsprogs)
    command -v ssh >/dev/null || missing+=(openssh-client)
fi

# Kafka: Java to run it, Maven to fetch it.
if [ -z "${SHOAL_TEST_KAFKA:-}" ]; then
    command -v java >/dev/null || missing+=(default-jre-headless)
    command -v mvn >/dev/null || missing+=(maven)
fi

fetch_kafka() {
    if [ -n "${SHOAL_TEST_KAFKA:-}" ] || ! command -v java >/dev/null || ! command -v mvn >/dev/null; then
        return
    fi
    "$(dirname "$0")/fetch_kafka.sh" >/dev/null || echo "services: Kafka could not be fetched" >&2
}

build_guests() {
    if [ "$(id -u)" = 0 ] && command -v mmdebstrap >/dev/null; then
        "$(dirname "$0")/build_guests.sh" >/dev/null || echo "services: the guests could not be built" >&2
    fi
}

if [ ${#missing[@]} -eq 0 ]; then
    fetch_kafka
    build_guests
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "services: installing the Debian packages ${missing[*]}" >&2
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
else
    echo "services: not installed: ${missing[*]}; their tests are skipped (on Debian: apt-get install ${missing[*]})" >&2
fi
fetch_kafka
build_guests
