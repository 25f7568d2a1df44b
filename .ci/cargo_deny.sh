#!/usr/bin/env bash
# Checks licences, advisories and sources of all crates with cargo-deny, which is installed first if it is missing.
#
# Machines that reach nothing but package registries cannot fetch the advisory database. They find a copy of it as a git bundle, and
# a build of cargo-deny, beside the folder of FEEDLINE_SHARED_DATA, if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
shared=$(realpath -m "${FEEDLINE_SHARED_DATA:-../shared/data}/..")
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# The folder in which cargo-deny looks for the database.
database=$cargo_home/advisory-dbs/advisory-db-3157b0e258782691
partial=
trap '[[ -z $partial ]] || rm -rf "$partial"' EXIT
if ! cargo deny --version >/dev/null 2>&1; then
  if [[ -f $shared/bin/cargo-deny.xz && $(uname -m) = x86_64 ]]; then
    mkdir -p "$cargo_home/bin"
    partial=$(mktemp "$cargo_home/bin/.cargo-deny.XXXXXX")
    python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
      "$shared/bin/cargo-deny.xz" "$partial"
    chmod 755 "$partial"
    mv "$partial" "$cargo_home/bin/cargo-deny"
  else
    echo "installing cargo-deny"
    cargo install --quiet --locked cargo-deny
  fi
fi
# A build downloads the crates of this platform only, but cargo-deny reads those of all platforms.
cargo fetch --quiet --locked
if [[ -f $shared/advisory-db.bundle ]]; then
  mkdir -p "$(dirname "$database")"
  (
    # One run at a time, and without the rest of a run that was killed.
    flock 9
    partial=$database.partial
    rm -rf "$partial"
    git clone --quiet "$shared/advisory-db.bundle" "$partial"
    rm -rf "$database"
    mv -T "$partial" "$database"
  ) 9>"$database.lock"
  cargo deny --offline --log-level error check
elif [[ -n ${CI:-} ]] || cargo deny fetch >/dev/null 2>&1; then
  cargo deny --log-level error check
else
  cargo deny --log-level error check bans licenses sources
  echo "advisories were not checked, because the advisory database cannot be downloaded" >&2
fi
