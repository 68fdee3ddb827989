#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
#
# To be sourced: `. /opt/code-interpreter/code-interpreter-env.sh LANGUAGE VERSION`, for python, node, java and go.
# Puts that version first on this shell's PATH and makes it the one of contexts that begin from now on.
# Without a version it lists those that are there.

casulo_switch() {
    case "$1" in
        python) casulo_places="/opt/python/versions/* /opt/python/*" casulo_variable=PYTHON_VERSION ;;
        node) casulo_places="/opt/node/*" casulo_variable=NODE_VERSION ;;
        java) casulo_places="/usr/lib/jvm/* /opt/java/*" casulo_variable=JAVA_VERSION ;;
        go) casulo_places="/opt/go/* /usr/lib/go-* /usr/local/go" casulo_variable=GO_VERSION ;;
        *) echo "usage: . code-interpreter-env.sh python|node|java|go VERSION" >&2; return 2 ;;
    esac
    casulo_found=""
    for casulo_place in $casulo_places; do
        [ -d "$casulo_place/bin" ] || continue
        casulo_found="$casulo_found ${casulo_place##*/}"
        case "-${casulo_place##*/}" in
            *[!0-9.]"$2" | *[!0-9.]"$2"[!0-9]*)
                [ -n "$2" ] || continue
                export PATH="$casulo_place/bin:$PATH" "$casulo_variable=$2"
                if [ -n "${EXECD_ENVS:-}" ]; then
                    mkdir -p "${EXECD_ENVS%/*}" && echo "$casulo_variable=$2" >>"$EXECD_ENVS"
                fi
                return 0 ;;
        esac
    done
    echo "$1${2:+ $2 is not here}; there is:${casulo_found:- only what is on PATH}" >&2
    [ -z "$2" ]
}

casulo_switch "${1:-}" "${2:-}"
