# shellcheck shell=bash
# libfaketime, for tests of processes whose clock of the day is wrong. Sourced by tests/run, which
# supplies `note`, `can_install` and `install_packages`. Nothing of it runs, so nothing is ended.
#
# After `provide_faketime`:
#   MCP_IDEMPOTENT_TEST_FAKETIME   the library that is loaded into such a process

faketime_library=

provide_faketime() {
    find_faketime || true
    if [ -z "$faketime_library" ] && can_install; then
        note "libfaketime: installing it with apt-get"
        if install_packages faketime; then find_faketime || true; fi
    fi
    if [ -z "$faketime_library" ]; then
        note "warning: no libfaketime; the tests of processes whose clocks are wrong will fail.
Install it (Debian, Ubuntu: 'apt-get install faketime'; Fedora: 'dnf install libfaketime';
macOS: 'brew install libfaketime'), or set MCP_IDEMPOTENT_TEST_FAKETIME to its libfaketimeMT.so.1."
    fi
    export MCP_IDEMPOTENT_TEST_FAKETIME="$faketime_library"
}

find_faketime() {
    local candidate
    for candidate in "${MCP_IDEMPOTENT_TEST_FAKETIME:-}" \
        /usr/lib/*/faketime/libfaketimeMT.so.1 \
        {/usr/lib64,/usr/lib,/usr/local/lib}/faketime/libfaketimeMT.so.1 \
        {/opt/homebrew,/usr/local}/opt/libfaketime/lib/faketime/libfaketime.1.dylib; do
        if [ -f "$candidate" ] && moves_the_clock "$candidate"; then
            faketime_library=$candidate
            return 0
        fi
    done
    return 1
}

# There may be one for another processor as well. (On macOS no program of the system can be asked.)
moves_the_clock() {
    local now moved
    [ "$(uname)" = Linux ] || return 0
    now=$(date +%s)
    moved=$(LD_PRELOAD=$1 FAKETIME=+3600 date +%s 2>/dev/null) || return 1
    [ $((moved - now)) -ge 3600 ]
}
