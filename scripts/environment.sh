# Sourced by the scripts beside it. `prepare FILE...` sets $python to an interpreter that has these requirements:
# the one in .venv, built on first use and brought up to date when a file changed, or $SANDBOX_PYTHON as it is.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "$(basename "$0"): $1" >&2
    exit 2
}

prepare() {
    if [ -n "${SANDBOX_PYTHON:-}" ]; then
        python=$SANDBOX_PYTHON
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
            fail "SANDBOX_PYTHON is '$python', which is not a Python of 3.10 or newer; unset it or name another"
        return
    fi
    python=$root/.venv/bin/python
    is_ready "$@" && return
    # One at a time: the lock is on the repository's folder, so it leaves no file behind.
    (! command -v flock >/dev/null || flock 9; is_ready "$@" || build "$@") 9<"$root" || exit
}

# A file counts as installed when its copy lies in .venv, which is put there last: an interrupted build is built again.
is_ready() {
    local file
    for file in "$@"; do cmp -s "$root/$file" "$root/.venv/installed-$file" || return 1; done
    [ -x "$python" ]
}

build() {
    local base file
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        base=$(find_python) || exit 2
        echo "preparing .venv with $("$base" --version), once; this takes a minute or so" >&2
        rm -rf "$root/.venv"
        "$base" -m venv "$root/.venv" >&2 || fail "could not create .venv; remove it and try again, or set SANDBOX_PYTHON"
    fi
    for file in "$@"; do
        cmp -s "$root/$file" "$root/.venv/installed-$file" && continue
        rm -f "$root/.venv/installed-$file"
        "$python" -m pip install --quiet --disable-pip-version-check -r "$root/$file" >&2 ||
            fail "pip could not install $file (above); with the packages installed elsewhere, set SANDBOX_PYTHON to that python"
        cp "$root/$file" "$root/.venv/installing" && mv "$root/.venv/installing" "$root/.venv/installed-$file"
    done
}

find_python() {
    local candidate has_version=
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null || continue
        has_version=$candidate
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null && echo "$candidate" && return
    done
    [ -z "$has_version" ] || fail "$has_version has no venv module; install it (Debian, Ubuntu: apt install python3-venv)"
    fail "no Python 3.10 to 3.14 on the PATH; install one, or set SANDBOX_PYTHON to one that has requirements.txt"
}

# Run a module of this repository from wherever the caller stands, so that the paths in its arguments stay the caller's.
run_module() {
    exec "$python" -c 'import runpy, sys; sys.path[0] = sys.argv.pop(1); module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)' "$root" "$@"
}
