#!/usr/bin/env bash
# Checks licences, advisories and sources of all crates with cargo-deny, which is installed first if it is missing.
#
# Machines that reach nothing but package registries cannot fetch the advisory database. They find a copy of it as a git bundle, and
# a build of cargo-deny, in the folder of FEEDLINE_SHARED_DATA's parent, if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
shared=$(dirname "${FEEDLINE_SHARED_DATA:-../shared/data}")
cargo_home=${CARGO_HOME:-$HOME/.cargo}
database=$cargo_home/advisory-dbs/advisory-db-3157b0e258782691
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
if [[ ! -f $shared/advisory-db.bundle ]]; then
  exec cargo deny --log-level error check
fi
if [[ ! -d $database ]]; then
  mkdir -p "$(dirname "$database")"
  partial=$(mktemp -d "$(dirname "$database")/.partial.XXXXXX")
  git clone --quiet "$shared/advisory-db.bundle" "$partial/database"
  mv "$partial/database" "$database"
  rmdir "$partial"
fi
exec cargo deny --offline --log-level error check
