#!/usr/bin/env bash
# Makes .venv and installs Shoal into it: `install.sh runtime` what running it needs, `install.sh dev` also what
# building, checking and testing it need. Called by the Makefile. Uses uv when it is there, else venv and pip.
set -euo pipefail
cd "$(dirname "$0")/.."

what="${1:-dev}"
constraints=requirements/constraints.txt
venv=.venv

say() { echo "install: $*" >&2; }

die() {
    say "$@"
    exit 1
}

is_new_enough() {
    # Run, not only looked for: a name on the PATH may lead to an interpreter that is not there.
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python of version 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.13 python3.12 python3.11 python3; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python of version 3.11 or newer was found; install one (on Debian: apt-get install python3), or set PYTHON"
}

install_package() {
    # From Debian, when we may; else say what is missing.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing the Debian package $1"
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >&2
    else
        die "the package $1 is missing; install it (on Debian: apt-get install $1) and try again"
    fi
}

make_environment() {
    local python
    python="$(find_python)"
    say "making $venv with $("$python" --version 2>&1)"
    if command -v uv >/dev/null; then
        uv venv --quiet --seed --python "$(command -v "$python")" "$venv"
        return
    fi
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        install_package "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    fi
    "$python" -m venv "$venv"
}

if [ -d "$venv" ] && ! is_new_enough "$venv/bin/python"; then
    say "$venv no longer works, making it again"
    rm -rf "$venv"
fi
[ -d "$venv" ] || make_environment

arguments=(-c "$constraints" -e .)
[ "$what" = runtime ] || arguments+=(--group dev)

say "installing the Python packages ($what)"
if command -v uv >/dev/null; then
    uv pip install --quiet --python "$venv/bin/python" "${arguments[@]}"
else
    pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
    # Dependency groups are new in pip 25.1.
    "$venv/bin/python" -c 'import pip, sys; sys.exit([int(n) for n in pip.__version__.split(".")[:2]] < [25, 1])' ||
        "${pip[@]}" install 'pip>=25.1'
    "${pip[@]}" install "${arguments[@]}"
fi

if [ "$what" = dev ]; then
    say "compiling the kernels"
    "$venv/bin/shoal" warmup
fi
