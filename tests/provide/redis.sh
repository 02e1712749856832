# shellcheck shell=bash
# A Redis server for the tests, each of which starts its own. Sourced by tests/run, which supplies
# `note`, `can_install`, `install_packages`, `$scratch`, `end_server` and calls `stop_redis`.
#
# After `provide_redis`:
#   MCP_IDEMPOTENT_TEST_REDIS_SERVER   the program: redis-server or valkey-server

redis_server=

provide_redis() {
    find_redis || true
    if [ -z "$redis_server" ] && can_install; then
        note "Redis: installing it with apt-get"
        if install_packages redis-server || install_packages valkey-server; then find_redis || true; fi
    fi
    if [ -z "$redis_server" ]; then
        note "warning: no Redis server; the tests of RedisStore will fail.
Install it (Debian, Ubuntu: 'apt-get install redis-server'; Fedora: 'dnf install valkey';
macOS: 'brew install redis'), or set MCP_IDEMPOTENT_TEST_REDIS_SERVER to its program."
    fi
    export MCP_IDEMPOTENT_TEST_REDIS_SERVER="$redis_server"
}

find_redis() {
    local candidate
    for candidate in "${MCP_IDEMPOTENT_TEST_REDIS_SERVER:-}" redis-server valkey-server; do
        if [ -n "$candidate" ] && redis_server=$(command -v "$candidate"); then return 0; fi
    done
    redis_server=
    return 1
}

# One whose test was killed is still running.
stop_redis() {
    local file pid
    while IFS= read -r file; do
        pid=$(head -n 1 "$file" 2>/dev/null) || continue
        if is_server_of "$pid" "${file%/redis.pid}"; then kill -KILL "$pid" 2>/dev/null || true; fi
    done < <(find "$scratch" -maxdepth 6 -name redis.pid 2>/dev/null)
    return 0
}
