#!/bin/sh
# Make .venv with the packages in requirements/environment.txt, and no others (make lock). On a fresh Debian 12 the interpreter comes without ensurepip:
# installed through apt when root, otherwise the error says what to type.
set -eu
PYTHON=${PYTHON:-python3}
say() { echo "muster: $*" >&2; }

command -v "$PYTHON" >/dev/null || { say "$PYTHON not found: install Python 3.11 or later (Debian: apt-get install python3)"; exit 1; }
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { say "$("$PYTHON" --version) is too old: Python 3.11 or later is needed; name another with make PYTHON=python3.12 …"; exit 1; }

if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    sh tests/again.sh sh -c 'apt-get -qq update; exec apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends python3-venv' >/dev/null
  else
    say "this Python cannot make virtual environments; as root: apt-get install --no-install-recommends python3-venv"
    exit 1
  fi
fi

[ -x .venv/bin/pip ] || { rm -rf .venv; say "making .venv"; "$PYTHON" -m venv .venv; }
say "installing the pinned packages into .venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# no-deps: each list is complete. pip before 23.3 ignores the version that a list gives when another package asks for an extra
# of it ("coverage[toml]"), and fails as soon as there is a newer release.
locked="install --quiet --only-binary=:all: --require-hashes --no-deps"
# shellcheck disable=SC2086
sh tests/again.sh .venv/bin/python -m pip $locked --requirement requirements/environment.txt
# setuptools warns about every editable installation
PYTHONWARNINGS=ignore .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
# schemas of Kubernetes 1.20 to 1.24, which later versions of that package lack: 23 MB on disk, beside the one that runs
older=.venv/kubernetes-validate-1.28.3
[ -d "$older" ] || sh tests/again.sh .venv/bin/python -m pip $locked --target "$older" --requirement requirements/older-schemas.txt
