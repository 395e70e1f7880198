#!/usr/bin/env bash
# Fetches the jars of a real Kafka broker into a cache, once; called by scripts/services.sh and so by `make test`.
# Prints the directory. The tests run a private broker from it (tests/services/kafka.py).
set -euo pipefail

version=3.9.1
cache="${XDG_CACHE_HOME:-$HOME/.cache}/shoal/kafka-$version"

if [ ! -e "$cache/complete" ]; then
    echo "services: fetching Kafka $version into $cache" >&2
    mkdir -p "$(dirname "$cache")"
    work="$(mktemp -d "$cache.XXXXXX")"
    trap 'rm -rf "$work"' EXIT
    cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>shoal.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
    (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=libs) >&2
    touch "$work/complete"
    # Another run may have been quicker; its result is as good.
    rm -rf "$cache"
    mv "$work" "$cache"
    trap - EXIT
fi
echo "$cache"
