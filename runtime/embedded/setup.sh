#!/bin/sh
# Builds .venv from the hash-locked requirements; called by the Makefile.
#   setup.sh venv VENV | install VENV STAMP LOCK... | torch VENV cpu|cuda | launcher VENV ROOT | lock VENV
set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'Error: %s\n' "$*" >&2; exit 1; }

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

make_venv() {
    for candidate in ${PYTHON:-} python3.11 python3 python; do
        if is_311 "$candidate"; then
            say "Making $1 with $("$candidate" --version)"
            need_space "$1" "${MILLPOND_SETUP_MIB:-3000}"
            rm -rf "$1"
            "$candidate" -m venv "$1" || fail "$candidate cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3.11-venv"
            mkdir -p "$1/stamps" "$1/home"
            return
        fi
    done
    fail "Python 3.11 was not found. Install it, or name it: make PYTHON=/path/to/python3.11 ..."
}

need_space() { # FOLDER MIB
    parent=$(dirname "$1")
    free=$(df -Pk "$parent" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge "$2" ] || fail "$parent has $free MiB free, and the environment needs $2 MiB. Free some space first."
}

# Runs pip, keeps what it says in a log, and shows one short line of progress.
run_pip() { # VENV LOCK
    log="$1/setup.log"
    mkdir -p "$1/stamps"
    total=$(grep -cE '^[A-Za-z0-9_.-]+==' "$2")
    say "Installing $2 ($total packages)"
    code_file="$1/stamps/.code"
    {
        code=0
        "$1/bin/python" -m pip install --require-hashes --no-deps --no-input --progress-bar off \
            --only-binary :all: --requirement "$2" 2>&1 || code=$?
        echo "$code" >"$code_file"
    } | tee "$log" | awk -v total="$total" -v live="$([ -t 1 ] && echo 1 || echo 0)" '
        /^(Collecting|Requirement already satisfied)/ { n++ }
        /^Collecting/ { if (live) printf "\r\033[K  %d/%d %s", n, total, $2; else if (n % 40 == 0) print "  " n "/" total }
        /^Installing collected/ { if (live) printf "\r\033[K  unpacking"; else print "  unpacking"; fflush() }
        { fflush() }
        END { if (live) printf "\r\033[K" }'
    return "$(cat "$code_file")"
}

explain() { # VENV LOCK
    tail -n 15 "$1/setup.log" >&2
    fail "pip could not install $2 (whole log: $1/setup.log)."
}

install() { # VENV STAMP LOCK...
    venv=$1 stamp=$2
    shift 2
    for lock in "$@"; do
        run_pip "$venv" "$lock" || explain "$venv" "$lock"
    done
    touch "$venv/stamps/$stamp"
}

install_torch() { # VENV KIND
    lock="requirements-torch-$2.lock"
    if [ "$2" = cuda ]; then
        need_space "$1" "${MILLPOND_SETUP_MIB:-9000}"
    fi
    if ! run_pip "$1" "$lock"; then
        # The CPU build is a file of its own that not every package index has; the common one runs on CPUs too.
        if [ "$2" = cpu ] && grep -qE 'No matching distribution|DO NOT MATCH THE HASHES' "$1/setup.log"; then
            say "No CPU build of torch was found; taking the common build: nearly 3 GB to fetch, 5 GB on disk."
            need_space "$1" "${MILLPOND_SETUP_MIB:-9000}"
            run_pip "$1" requirements-torch-cuda.lock || explain "$1" requirements-torch-cuda.lock
        else
            explain "$1" "$lock"
        fi
    fi
    touch "$1/stamps/torch-$2"
}

launcher() { # VENV ROOT
    cat >"$1/bin/millpond" <<EOF
#!/bin/sh
PYTHONPATH="$2:$2/platform\${PYTHONPATH:+:\$PYTHONPATH}" exec "$2/$1/bin/python" -m runtime.client "\$@"
EOF
    chmod +x "$1/bin/millpond"
}

# Writes the lock files anew. One resolution for everything; the smaller locks are cut from it.
write_locks() { # VENV
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    "$1/bin/python" -m venv "$tools/venv"
    "$tools/venv/bin/python" -m pip install --quiet uv
    compile() { # OUTPUT CONSTRAINT EXTRA...
        output=$1 constraint=$2
        shift 2
        extras=""
        for extra in "$@"; do extras="$extras --extra $extra"; done
        # shellcheck disable=SC2086  # options and extras are words
        "$tools/venv/bin/uv" pip compile --quiet ${LOCK_OPTIONS:-} --python-version 3.11 --universal --generate-hashes --no-header \
            --no-annotate --no-emit-index-url --no-emit-find-links ${constraint:+--constraint "$constraint"} $extras \
            --output-file "$output" pyproject.toml
        say "wrote $output"
    }
    compile requirements-dev.lock "" controlplane embedded engine dev
    compile requirements.lock requirements-dev.lock controlplane embedded
    compile requirements-engine.lock requirements-dev.lock engine
    say "The torch locks change with torch's version only; they are kept."
}

command=$1
shift
case $command in
    venv) make_venv "$@" ;;
    install) install "$@" ;;
    torch) install_torch "$@" ;;
    launcher) launcher "$@" ;;
    lock) write_locks "$@" ;;
    *) fail "unknown command $command" ;;
esac
