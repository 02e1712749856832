# shellcheck shell=bash
# Reference MCP servers from npm and PyPI, for tests of the proxy in front of servers that nobody touched. Sourced
# by tests/run, which supplies `note`. Nothing of it runs, so nothing is ended.
#
# After `provide_servers`:
#   MCP_IDEMPOTENT_TEST_SERVERS   a directory with node_modules and a virtual environment, py

npm_servers=(
    @modelcontextprotocol/server-everything@2026.8.31
    @modelcontextprotocol/server-filesystem@2026.8.31
    @modelcontextprotocol/server-memory@2026.8.31
)
python_servers=(mcp-server-time==2026.10.19)

provide_servers() {
    # They stay there for the next run.
    : "${MCP_IDEMPOTENT_TEST_SERVERS:=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/reference-servers}"
    export MCP_IDEMPOTENT_TEST_SERVERS
    if has_npm_servers && has_python_servers; then return; fi
    note "reference servers: installing them with npm and pip into $MCP_IDEMPOTENT_TEST_SERVERS"
    mkdir -p "$MCP_IDEMPOTENT_TEST_SERVERS"
    has_npm_servers || install_npm_servers || true
    has_python_servers || install_python_servers || true
    if ! has_npm_servers || ! has_python_servers; then
        note "warning: no reference servers; the tests of the proxy in front of them will fail.
Install Node.js 20 or newer with npm, and Python 3.10 or newer with pip and venv
(Debian, Ubuntu: 'apt-get install nodejs npm python3-venv'), or set MCP_IDEMPOTENT_TEST_SERVERS to a
directory where 'npm install ${npm_servers[*]}' was run,
and where the virtual environment 'py' has ${python_servers[*]}."
    fi
}

has_npm_servers() {
    local server
    for server in "${npm_servers[@]}"; do
        [ -e "$MCP_IDEMPOTENT_TEST_SERVERS/node_modules/.bin/mcp-$(basename "${server%@*}")" ] || return 1
    done
}

has_python_servers() {
    local server
    for server in "${python_servers[@]}"; do
        [ -e "$MCP_IDEMPOTENT_TEST_SERVERS/py/bin/${server%==*}" ] || return 1
    done
}

install_npm_servers() {
    npm install --no-audit --no-fund --prefix "$MCP_IDEMPOTENT_TEST_SERVERS" "${npm_servers[@]}" >&2 </dev/null
}

install_python_servers() {
    python3 -m venv "$MCP_IDEMPOTENT_TEST_SERVERS/py" >&2 &&
        "$MCP_IDEMPOTENT_TEST_SERVERS/py/bin/pip" install -q "${python_servers[@]}" >&2 </dev/null
}
