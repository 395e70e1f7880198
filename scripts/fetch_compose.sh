#!/usr/bin/env bash
# Fetches Docker's two compose commands for the tests, into the cache directory of the user, unless they are there:
#   config/cli-plugins/docker-compose    the plug-in of `docker compose`: 2.26, of Debian 13; a program without libraries
#   bin/docker-compose                   the older command: 1.29, of Debian 12, with the Python packages that it needs
# Nothing is installed: what agents find on this machine stays as it is. Needs Debian 12. Prints where.
set -euo pipefail

version=1
commands="${XDG_CACHE_HOME:-$HOME/.cache}/shoal/compose-$version"
mkdir -p "$(dirname "$commands")"
exec 9>"$commands.lock"
flock 9
if [ -e "$commands/complete" ]; then
    echo "$commands"
    exit 0
fi
part="$commands.part"
rm -rf "$part" "$commands"
mkdir -p "$part"/{bin,config/cli-plugins,packages}

plugin=docker-compose_2.26.1-4_amd64.deb
sha256=47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea
# From where apt of this machine takes its packages: the pool there has those of other releases, too.
pool=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Component: main' | head -n 1)
curl -fsS --max-time 300 -o "$part/$plugin" "${pool%/}/pool/main/d/docker-compose/$plugin"
echo "$sha256  $part/$plugin" | sha256sum --check --quiet
dpkg -x "$part/$plugin" "$part/plugin"
mv "$part/plugin/usr/libexec/docker/cli-plugins/docker-compose" "$part/config/cli-plugins/"

(
    cd "$part/packages"
    modules="attr certifi chardet charset-normalizer distro docker dockerpty docopt dotenv idna jsonschema pkg-resources
        pyrsistent requests six texttable urllib3 websocket yaml"
    # shellcheck disable=SC2046,SC2086 # one word each
    apt-get download -qq docker-compose=1.29.2-3 $(printf 'python3-%s ' $modules) 2>/dev/null
    for package in *.deb; do
        dpkg -x "$package" "$part/older"
    done
)
cat >"$part/bin/docker-compose" <<'COMMAND'
#!/bin/sh
older=$(dirname "$(readlink -f "$0")")/../older
PYTHONPATH="$older/usr/lib/python3/dist-packages" exec /usr/bin/python3 "$older/usr/bin/docker-compose" "$@"
COMMAND
chmod 755 "$part/bin/docker-compose"
rm -rf "$part/plugin" "$part/packages" "$part/$plugin"
touch "$part/complete"
mv "$part" "$commands"
echo "$commands"
