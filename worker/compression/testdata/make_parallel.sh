#!/usr/bin/env bash
# Writes the files of compressors that divide their input, which the tests of this crate decode. Needs pigz, bgzip, pbzip2 and lbzip2.
set -euo pipefail
cd "$(dirname "$0")"
content=$(mktemp)
trap 'rm -f "$content" "$content.twice"' EXIT
python3 > "$content" <<'END'
for row in range(5200):
    print(row, row * row % 9973, "word" if row % 7 else "line")
END
cat "$content" "$content" > "$content.twice"
pigz -6 -b 32 -n -c "$content" > pigz.gz
pigz -6 -b 32 -n -i -c "$content" > pigz-independent.gz
bgzip -c "$content" > bgzip.gz
pbzip2 -q -1 -b1 -c "$content.twice" > pbzip2.bz2
lbzip2 -1 -n 2 -c "$content.twice" > lbzip2.bz2
