#!/bin/sh
# Build Muster's image with docker, or with podman if docker does not respond: image.sh NAME TAG [BASE]
# BASE: the base image, in place of the one that release/Containerfile names
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 2 ] && [ $# -le 3 ] && [ -n "$1" ] && [ -n "$2" ] || { echo "usage: make image IMAGE=NAME TAG=TAG [BASE=IMAGE]" >&2; exit 64; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
silent=
for engine in docker podman; do
  command -v "$engine" >/dev/null || continue
  if "$engine" info >/dev/null 2>&1; then
    exec "$engine" build --file release/Containerfile ${3:+--build-arg "BASE=$3"} --label "org.opencontainers.image.version=$version" --tag "$1:$2" .
  fi
  silent="$silent $engine"
done
if [ -n "$silent" ]; then
  echo "muster:$silent is installed, but '${silent##* } info' fails: start its service, and check that you may use it" >&2
else
  echo "muster: neither docker nor podman is on PATH" >&2
fi
echo "muster: use 'make package' to build the same image as an archive without them, on Debian" >&2
exit 1
