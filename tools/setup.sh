# Installs what building, testing and the demo need; sourced by tools/demo.sh and tests/run, from the repository's root.
#
# Each function does nothing, quietly and quickly, where all is there. As root it uses apt; without root it takes
# cmake from PyPI and unpacks Debian's nasm into .local, and names what is still missing.
# shellcheck shell=bash disable=SC2034 # the variables are for those who source this

venv="$PWD/.venv"
python="$venv/bin/python"
export PATH="$PWD/.local/usr/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# For every use: maturin builds the wheel, torch is the trainer, torchvision and pillow are the reference, and
# scikit-image and scikit-learn ship real photographs.
base_packages=(maturin numpy pillow scikit-image scikit-learn torch torchvision)
# For the tests alone: what the recipes train with, and what writes and reads datasets beside Feedline.
test_packages=(mypy pytest lightning-fabric lightning accelerate transformers timm webdataset jax lmdb msgpack)

say() { printf '%s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# Runs a command and shows its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    say "failed: $*"
    tail -n 40 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# Runs a command as root, or fails where that cannot be had without a question.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

apt_install() {
  command -v apt-get >/dev/null && as_root true || return 1
  say "installing $* (apt)"
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" 2>/dev/null && return
  # A fresh machine has no package lists, an old one stale ones.
  quietly as_root apt-get update && quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# Unpacks a Debian package below .local, which needs no root.
apt_unpack() {
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  say "unpacking $1 into .local (apt-get download)"
  local folder
  folder=$(mktemp -d)
  (cd "$folder" && quietly apt-get download "$1") && mkdir -p .local && dpkg-deb -x "$folder"/*.deb .local
  local status=$?
  rm -rf "$folder"
  return $status
}

# Rust of the version that Cargo.toml asks for, a C compiler, nasm and cmake.
setup_system() {
  if ! command -v cargo >/dev/null; then
    [ -x "$HOME/.cargo/bin/cargo" ] || die "cargo is missing: install Rust $(wanted_rust) or newer (https://rustup.rs)"
    export PATH="$HOME/.cargo/bin:$PATH"
  fi
  local have
  have=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n' "$(wanted_rust)" "$have" | sort -V | head -n 1)" = "$(wanted_rust)" ] ||
    die "Rust $have is too old, Feedline needs $(wanted_rust): rustup update stable"

  local missing=()
  command -v cc >/dev/null || missing+=(gcc libc6-dev)
  command -v nasm >/dev/null || missing+=(nasm)
  command -v cmake >/dev/null || missing+=(cmake)
  # cmake's default generator calls it.
  command -v make >/dev/null || missing+=(make)
  [ ${#missing[@]} = 0 ] && return
  apt_install "${missing[@]}" && return

  if ! command -v cmake >/dev/null; then
    pip_install cmake
    mkdir -p .local/usr/bin
    ln -sf "$venv/bin/cmake" .local/usr/bin/cmake
  fi
  command -v nasm >/dev/null || apt_unpack nasm || true
  local tool still=()
  for tool in cc nasm cmake make; do
    command -v "$tool" >/dev/null || still+=("$tool")
  done
  [ ${#still[@]} = 0 ] || die "still missing: ${still[*]}. Without root they cannot be installed here: ask for the Debian packages gcc libc6-dev make nasm cmake"
}

wanted_rust() {
  sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

# A virtual environment of Python 3.11 or newer in .venv.
setup_venv() {
  [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1 && return
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    "$candidate" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv ||
      die "$candidate cannot make virtual environments: install the Debian package python3-venv"
    say "making .venv with $("$candidate" --version)"
    "$candidate" -m venv --clear "$venv"
    return
  done
  die "Python 3.11 or newer is missing: install the Debian packages python3 python3-venv"
}

# Installs packages that the environment lacks.
pip_install() {
  setup_venv
  local missing
  missing=$("$python" - "$@" <<'PYTHON'
import sys
from importlib import metadata

def is_there(name):
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False

print(*(name for name in sys.argv[1:] if not is_there(name)))
PYTHON
  )
  [ -z "$missing" ] && return
  say "installing $missing (pip)"
  # shellcheck disable=SC2086 # a list of names
  quietly "$python" -m pip install $missing
}

# Builds the wheel in release mode and installs it into .venv, unless the one that is there has the same content.
install_wheel() {
  local wheels wheel stamp
  wheels="$PWD/target/wheels"
  rm -rf "$wheels"
  "$venv/bin/maturin" build --release --quiet -m pybindings/Cargo.toml --interpreter "$python" --out "$wheels" || return
  wheel=$(echo "$wheels"/*.whl)
  stamp="$venv/feedline-wheel"
  if [ "$(wheel_content "$wheel")" = "$(cat "$stamp" 2>/dev/null)" ]; then
    return
  fi
  quietly "$python" -m pip install --force-reinstall --no-deps "$wheel" && wheel_content "$wheel" >"$stamp"
}

# What is in a wheel, as one line; times of packing are not part of it.
wheel_content() {
  "$python" - "$1" <<'PYTHON'
import hashlib, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    entries = sorted((entry.filename, entry.CRC) for entry in wheel.infolist() if not entry.filename.endswith("RECORD"))
print(hashlib.sha256(repr(entries).encode()).hexdigest())
PYTHON
}
