#!/bin/sh
# again.sh COMMAND…: what fetches something may fail for a moment: four tries, with growing pauses.
for pause in 5 20 60; do
  "$@" && exit
  echo "muster: again in $pause s: $*" >&2
  sleep "$pause"
done
exec "$@"
