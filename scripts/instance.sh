# Sourced by the three competition scripts: how they find the tool and read their arguments.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# A tool that is called as `python -m` takes no modules out of the benchmark's folder.
export PYTHONSAFEPATH=1

complain() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
}

# Only version 1 of the script interface exists.
require_version() {
    if [[ "${1-}" != v1 ]]; then
        complain "the first argument must be 'v1', found '${1-}'"
        exit 2
    fi
}

# The tool: $BNN_VNNLIB, else what install_tool.sh made beside these scripts, else what is on PATH. Sets `tool`.
find_tool() {
    if [[ -n "${BNN_VNNLIB-}" ]]; then
        tool=$BNN_VNNLIB
    elif [[ -x "$here/.venv/bin/bnn-vnnlib" ]]; then
        tool=$here/.venv/bin/bnn-vnnlib
    else
        tool=$(command -v bnn-vnnlib || true)
    fi
    if [[ ! -x "$tool" ]]; then
        complain "bnn-vnnlib is not installed; run 'install_tool.sh v1' first, or set BNN_VNNLIB to the program"
        return 1
    fi
}

# find_file NAME: the file itself or, since benchmarks are stored packed but named unpacked (or the reverse), its
# .gz twin. Sets `file`.
find_file() {
    for file in "$1" "$1.gz" "${1%.gz}"; do
        if [[ -f "$file" ]]; then
            return 0
        fi
    done
    complain "no such file: $1 (nor $1.gz)"
    return 1
}

# find_network ONNX: a path, or the competition's list "[('f', 'a.onnx')]". Sets `network` to [NAME=]MODEL and
# `file` to MODEL.
find_network() {
    local entry="\\( *['\"]([A-Za-z][A-Za-z0-9_]*)['\"] *, *['\"]([^'\"]+)['\"] *\\)"
    if [[ "$1" != \[* ]]; then
        find_file "$1" && network=$file
    elif [[ "$1" =~ ^\[\ *$entry\ *,?\ *\]$ ]]; then
        local name=${BASH_REMATCH[1]}
        find_file "${BASH_REMATCH[2]}" && network=$name=$file
    elif [[ "$1" =~ ^\[\ *$entry\ *, ]]; then
        complain "several networks are not supported: $1"
        return 1
    else
        complain "expected a path or a list [('name', 'path')], found: $1"
        return 1
    fi
}
