#!/usr/bin/env bash
# Shows Feedline at work: pictures → shards → training.
#
#   tools/demo.sh            with generated pictures and the photographs that scikit-image and scikit-learn ship
#   tools/demo.sh FOLDER     with a class-per-folder tree of your own
#
# Installs what is missing into .venv (and with apt as root), builds Feedline in release mode, and leaves everything
# else in .demo. A second run starts where all of that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
case "${1-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit ;;
  "") folder= ;;
  *) folder=$(cd "$OLDPWD" && realpath -e "$1") || exit 2 ;;
esac
# shellcheck source=tools/setup.sh
. tools/setup.sh

setup_system
setup_venv
pip_install "${base_packages[@]}"
say "building Feedline (release)"
install_wheel
feedline="$venv/bin/feedline"

if [ -z "$folder" ]; then
  folder="$PWD/.demo/pictures"
  if [ ! -d "$folder" ]; then
    say "drawing pictures"
    rm -rf "$folder.new"
    "$python" tools/demo_data.py "$folder.new" --images 400
    mv "$folder.new" "$folder"
  fi
fi

# One set of shards for each state of the folder: names, sizes and times.
state=$(find -L "$folder" -type f -printf '%P %s %T@\n' | sort | sha256sum | cut -c1-12)
shards="$PWD/.demo/shards-$state"
if [ ! -f "$shards/manifest.json" ]; then
  rm -rf "$shards"
  "$feedline" convert "$folder" "$shards" --prefix demo --shard-size 16M
fi
pattern=$("$python" - "$shards" <<'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
count = len(json.loads((folder / "manifest.json").read_text())["sets"]["demo"]["shards"])
print(folder / f"demo-{{{0:06}..{count - 1:06}}}.tar")
PYTHON
)
"$feedline" inspect "$pattern"

sheet="$PWD/.demo/first-batch.png"
say "training"
"$python" tools/demo_train.py "$pattern" --sheet "$sheet"

cat <<END
done in $((SECONDS - started)) s
  pictures        $folder
  shards          $pattern
  first batch     $sheet
  once more       $python tools/demo_train.py '$pattern'
END
