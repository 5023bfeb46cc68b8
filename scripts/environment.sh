# Sourced by the scripts beside it. `prepare FILE...` sets $python to an interpreter that has these requirements:
# the one in .venv, built on first use and brought up to date when a file changed, or $SANDBOX_PYTHON as it is.
# $SANDBOX_CUDA, 12, 12.6 or 13, selects the CUDA packages of .venv: by default those that it has, or 12.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

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
    python=$venv/bin/python
    : "${SANDBOX_CUDA:=$(cat "$venv/cuda" 2>/dev/null || echo 12)}"
    export SANDBOX_CUDA
    case "$SANDBOX_CUDA" in
        12 | 12.6 | 13) ;;
        *) fail "SANDBOX_CUDA is '$SANDBOX_CUDA'; set it to 12, 12.6 or 13, or unset it" ;;
    esac
    is_ready "$@" && return
    # One at a time: the lock is on the repository's folder, so it leaves no file behind.
    (! command -v flock >/dev/null || flock 9; is_ready "$@" || build "$@") 9<"$root" || exit
}

# A file counts as installed when its copy lies in .venv. From before the first change until after the last one there
# is .venv/unfinished, so what an interruption leaves behind is never taken as ready.
is_ready() {
    local file
    [ ! -e "$venv/unfinished" ] && [ -x "$python" ] && has_cuda || return
    for file in "$@"; do cmp -s "$root/$file" "$venv/installed-$file" || return; done
}

# An environment without a note is one for CUDA 12.
has_cuda() {
    [ "$(cat "$venv/cuda" 2>/dev/null || echo 12)" = "$SANDBOX_CUDA" ]
}

# With CUDA 13, leave out the packages for CUDA 12; setup.py requires the others.
without_other_cuda() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        [ "$SANDBOX_CUDA" = 13 ] && [[ $line == *cu12* || $line == *cuda12x* ]] || printf '%s\n' "$line"
    done
}

build() {
    local file
    if [ -e "$venv/unfinished" ] || ! has_cuda || ! "$python" -m pip --version >/dev/null 2>&1; then
        create
    fi
    : >"$venv/unfinished"
    for file in "$@"; do
        cmp -s "$root/$file" "$venv/installed-$file" && continue
        without_other_cuda <"$root/$file" >"$venv/requested-$file"
        if ! (cd "$root" && "$python" -m pip install --quiet --disable-pip-version-check -r "$venv/requested-$file") >&2; then
            [ -e "$venv/installed-$1" ] || rm -rf "$venv"
            fail "pip could not install $file (see above); to use packages that are installed elsewhere, set SANDBOX_PYTHON"
        fi
        cp "$root/$file" "$venv/installed-$file"
    done
    rm "$venv/unfinished"
}

create() {
    local base
    if [ -e "$venv" ] && [ ! -e "$venv/unfinished" ] && [ ! -e "$venv/installed-requirements.txt" ]; then
        fail "$venv was made by something else and has no pip; remove it, or set SANDBOX_PYTHON=$python to use it as it is"
    fi
    base=$(find_python) || exit
    echo "preparing .venv with $("$base" --version), once; this takes a minute or so" >&2
    rm -rf "$venv"
    mkdir "$venv"
    : >"$venv/unfinished"
    echo "$SANDBOX_CUDA" >"$venv/cuda"
    "$base" -m venv "$venv" >&2 || fail "$base could not create .venv (see above)"
}

find_python() {
    local candidate without_venv=
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do
        "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    [ -z "$without_venv" ] || fail "$without_venv cannot make environments; install its venv module (Debian: apt install python3-venv)"
    fail "there is no Python 3.10 to 3.13 on the PATH; install one, or set SANDBOX_PYTHON to a Python with requirements.txt"
}

# Run a module of this repository from wherever the caller stands, so that the paths in its arguments stay the caller's.
run_module() {
    exec "$python" -c 'import runpy, sys; sys.path[0] = sys.argv.pop(1); module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)' "$root" "$@"
}
