# shellcheck shell=bash
# pgbouncer, which tests start in front of Postgres. Sourced by tests/run, which supplies `note`,
# `can_install` and `install_packages`. Nothing of it runs here, so nothing is ended.
#
# After `provide_pgbouncer`:
#   MCP_IDEMPOTENT_TEST_PGBOUNCER   the program

provide_pgbouncer() {
    local program
    if ! program=$(find_pgbouncer) && can_install; then
        note "pgbouncer: installing it with apt-get"
        install_pgbouncer || true
        program=$(find_pgbouncer) || true
    fi
    if [ -z "$program" ]; then
        note "warning: no pgbouncer; the tests behind a pooler will fail.
Install it (Debian, Ubuntu: 'apt-get install pgbouncer'; Fedora: 'dnf install pgbouncer';
macOS: 'brew install pgbouncer'), or set MCP_IDEMPOTENT_TEST_PGBOUNCER to the program."
    fi
    export MCP_IDEMPOTENT_TEST_PGBOUNCER="$program"
}

find_pgbouncer() {
    local candidate
    for candidate in "${MCP_IDEMPOTENT_TEST_PGBOUNCER:-}" "$(command -v pgbouncer)" \
        /usr/sbin/pgbouncer {/opt/homebrew,/usr/local}/bin/pgbouncer; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Debian starts what it installs, unless this file says no.
install_pgbouncer() {
    local policy=/usr/sbin/policy-rc.d installed=0
    if [ -e "$policy" ]; then
        install_packages pgbouncer
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    install_packages pgbouncer || installed=$?
    rm -f "$policy"
    return "$installed"
}
