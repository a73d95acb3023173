#!/bin/sh
# Build Muster's image with docker or podman, whichever answers: image.sh NAME TAG
set -eu
cd "$(dirname "$0")/.."
[ $# = 2 ] && [ -n "$1" ] && [ -n "$2" ] || { echo "usage: make image IMAGE=NAME TAG=TAG" >&2; exit 64; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
silent=
for engine in docker podman; do
  command -v "$engine" >/dev/null || continue
  if "$engine" info >/dev/null 2>&1; then
    exec "$engine" build --file release/Containerfile --label "org.opencontainers.image.version=$version" --tag "$1:$2" .
  fi
  silent="$silent $engine"
done
if [ -n "$silent" ]; then
  echo "muster:$silent is installed, but '${silent##* } info' fails: is its service running, and may you use it?" >&2
else
  echo "muster: neither docker nor podman is on PATH" >&2
fi
echo "muster: without them 'make package' makes the same image as an archive, on Debian" >&2
exit 1
