# shellcheck shell=bash
# Postgres for the tests. Sourced by tests/run, which supplies `note`, `die`, `install_packages`,
# `$scratch` (a directory that is removed at the end) and calls `stop_postgres`.
#
# After `provide_postgres`:
#   DATABASE_URL                  a database that the tests may fill, with the rights of a superuser
#                                 when it is ours
#   MCP_IDEMPOTENT_TEST_PG_BIN    directory of initdb, postgres and pg_ctl, for tests that start, kill
#                                 and restart a server of their own
#   MCP_IDEMPOTENT_TEST_PG_USER   the user to run such a server as; empty when we are not root
#   MCP_TEST_LOCALE               a locale in which that database speaks another language than English

: "${scratch:=}"
pg_bin=
pg_user=
pg_pid=
pg_container=
pg_locale_path=

provide_postgres() {
    find_server_binaries || true
    if [ -z "$pg_bin" ] && install_packages_with_postgres; then
        find_server_binaries || true
    fi
    choose_server_user

    if database_url_answers; then
        note "Postgres: the one that DATABASE_URL names"
    elif [ -n "$pg_bin" ]; then
        start_private_cluster
    elif docker_answers; then
        start_container
    else
        die "no Postgres: DATABASE_URL names none that answers, and there are no server binaries.
Install the server (Debian, Ubuntu: 'apt-get install postgresql'; Fedora: 'dnf install postgresql-server';
macOS: 'brew install postgresql'), or start Docker, or set DATABASE_URL to a database that tests may fill."
    fi

    if [ -z "$pg_bin" ]; then
        note "warning: no Postgres server binaries; the tests that kill a server of their own will fail.
Install the server package ('apt-get install postgresql', 'brew install postgresql')."
    fi
    export MCP_IDEMPOTENT_TEST_PG_BIN="$pg_bin" MCP_IDEMPOTENT_TEST_PG_USER="$pg_user"
    choose_message_locale
}

# --- finding -------------------------------------------------------------------------------------

is_server_directory() {
    [ -x "$1/initdb" ] && [ -x "$1/postgres" ] && [ -x "$1/pg_ctl" ]
}

find_server_binaries() {
    local candidate program
    while IFS= read -r candidate; do
        if [ -z "$pg_bin" ] && is_server_directory "$candidate"; then pg_bin=$candidate; fi
    done < <(
        [ -z "${MCP_IDEMPOTENT_TEST_PG_BIN:-}" ] || printf '%s\n' "$MCP_IDEMPOTENT_TEST_PG_BIN"
        # A link in PATH stands for the directory it points to: psql lives there as well.
        if program=$(command -v postgres); then
            dirname "$(readlink -f "$program" 2>/dev/null || printf '%s\n' "$program")"
        fi
        pg_config --bindir 2>/dev/null || true
        printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5 -rn
        printf '%s\n' /usr/pgsql-*/bin | sort -t- -k2,2 -rn
        printf '%s\n' {/opt/homebrew,/usr/local,/home/linuxbrew/.linuxbrew}/opt/postgresql*/bin | sort -t@ -k2,2 -rn
        printf '%s\n' /usr/local/pgsql/bin
    )
    [ -n "$pg_bin" ]
}

# Installs the server without the "main" cluster that Debian's package makes and starts.
install_packages_with_postgres() {
    local settings=/etc/postgresql-common/createcluster.d settings_file installed=0
    can_install || return 1
    settings_file=$settings/mcp-idempotent-tests.conf
    note "Postgres: installing the server with apt-get"
    mkdir -p "$settings"
    printf 'create_main_cluster = false\n' >"$settings_file"
    install_packages postgresql || installed=$?
    rm -f "$settings_file"
    return "$installed"
}

# A server refuses to run as root.
choose_server_user() {
    local candidate
    [ "$(id -u)" -eq 0 ] || return 0
    for candidate in "${MCP_IDEMPOTENT_TEST_PG_USER:-}" postgres nobody; do
        if [ -n "$candidate" ] && id -u "$candidate" >/dev/null 2>&1; then
            pg_user=$candidate
            return 0
        fi
    done
    die "Postgres refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as.
Create one ('useradd --system postgres') or run the tests as an ordinary user."
}

# Replaces the (sub)shell by a command of the server, in a directory that its user may enter.
exec_as_server_user() {
    cd "$scratch/postgres" || exit 1
    [ -z "$pg_locale_path" ] || export LOCPATH="$pg_locale_path"
    export HOME="$scratch/postgres"
    if [ -z "$pg_user" ]; then
        exec "$@"
    elif setpriv --reuid=0 true 2>/dev/null; then
        exec setpriv --reuid="$(id -u "$pg_user")" --regid="$(id -g "$pg_user")" --clear-groups -- "$@"
    elif command -v runuser >/dev/null; then
        exec runuser -u "$pg_user" -- "$@"
    else
        # shellcheck disable=SC2016 # the inner shell expands it
        exec su -s /bin/sh "$pg_user" -c 'exec "$0" "$@"' -- "$@"
    fi
}

database_url_answers() {
    local answer client
    case ${DATABASE_URL:-} in
        '') return 1 ;;
        postgres://* | postgresql://*) ;;
        *)
            note "DATABASE_URL is not a postgres:// address; it is not used"
            return 1
            ;;
    esac
    if client=$(psql_program); then
        if answer=$(PGCONNECT_TIMEOUT=5 "$client" "$DATABASE_URL" -XAtc 'SELECT 1' 2>&1 </dev/null); then
            return 0
        fi
    else
        answer='the address does not accept connections'
        if port_answers "$DATABASE_URL"; then return 0; fi
    fi
    note "DATABASE_URL is set but not used: $answer"
    return 1
}

psql_program() {
    if [ -n "$pg_bin" ] && [ -x "$pg_bin/psql" ]; then
        printf '%s\n' "$pg_bin/psql"
    else
        command -v psql
    fi
}

# Whether something listens at the host and port of an address: all that can be told without psql.
port_answers() {
    local rest=${1#*://} host port
    rest=${rest%%[/?]*}
    rest=${rest##*@}
    host=${rest%:*}
    port=5432
    case $rest in *:*) port=${rest##*:} ;; esac
    (exec 3<>"/dev/tcp/${host:-127.0.0.1}/$port") 2>/dev/null
}

# --- a private cluster -----------------------------------------------------------------------------

start_private_cluster() {
    local home=$scratch/postgres attempt port
    mkdir -m 700 "$home"
    [ -z "$pg_user" ] || chown "$pg_user" "$home"
    make_message_locale

    note "Postgres: a private cluster of $("$pg_bin/postgres" --version)${pg_user:+, run as $pg_user}"
    if ! (exec_as_server_user "$pg_bin/initdb" --pgdata="$home/data" --username=postgres --auth=trust \
        --encoding=UTF8 --locale=C --no-sync) >"$scratch/initdb.log" 2>&1 </dev/null; then
        cat "$scratch/initdb.log" >&2
        die "initdb failed, see above. Another server can be named with DATABASE_URL."
    fi
    # Nothing here has to survive a power cut, so nothing waits for the disk; a killed process loses
    # nothing by that. synchronous_commit keeps its default, because it decides how commits behave.
    cat >>"$home/data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = '$home'
max_connections = 200
shared_buffers = 64MB
fsync = off
full_page_writes = off
jit = off
lc_messages = 'C'
CONF
    cat >"$home/data/pg_hba.conf" <<CONF
local all all              trust
host  all all 127.0.0.1/32 trust
CONF

    unset PGHOST PGHOSTADDR PGPORT PGUSER PGPASSWORD PGDATABASE PGOPTIONS PGSERVICE PGSSLMODE
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        port=$((20000 + (RANDOM % 12000)))
        if port_answers "x://127.0.0.1:$port"; then continue; fi
        (exec_as_server_user "$pg_bin/postgres" -D "$home/data" -p "$port") >"$scratch/postgres.log" 2>&1 </dev/null &
        pg_pid=$!
        if server_is_ready "$home/data"; then
            DATABASE_URL="postgres://postgres@127.0.0.1:$port/mcp_idempotent_test"
            export DATABASE_URL
            create_database "$port"
            return 0
        fi
        # Another process may have taken the port meanwhile; every other cause fails again at once.
        if ! grep -q 'could not bind' "$scratch/postgres.log"; then break; fi
    done
    cat "$scratch/postgres.log" >&2
    die "the private Postgres cluster did not start (attempt $attempt), see above.
Another server can be named with DATABASE_URL."
}

# The server writes "ready" into its pid file; it has failed when its process is gone.
server_is_ready() {
    local i
    for ((i = 0; i < 600; i++)); do
        if grep -q '^ready' "$1/postmaster.pid" 2>/dev/null; then return 0; fi
        if ! kill -0 "$pg_pid" 2>/dev/null; then return 1; fi
        sleep 0.1
    done
    return 1
}

create_database() {
    local client
    client=$(psql_program) || die "no psql beside the server in $pg_bin: install the client package (postgresql-client)."
    "$client" "postgres://postgres@127.0.0.1:$1/postgres" -XAtqc 'CREATE DATABASE mcp_idempotent_test' </dev/null ||
        die "the private Postgres cluster refused CREATE DATABASE."
}

# --- a container -----------------------------------------------------------------------------------

docker_answers() {
    command -v docker >/dev/null && docker info >/dev/null 2>&1 </dev/null
}

start_container() {
    local i port
    note "Postgres: a container (postgres:17)"
    pg_container=mcp-idempotent-tests-$$
    # The image carries translated messages, but only an English locale.
    docker run --detach --rm --name "$pg_container" --publish 127.0.0.1::5432 \
        --env POSTGRES_HOST_AUTH_METHOD=trust --env POSTGRES_DB=mcp_idempotent_test \
        --entrypoint bash postgres:17 -c \
        'localedef -i de_DE -f UTF-8 de_DE.UTF-8; exec docker-entrypoint.sh postgres -c max_connections=200 -c fsync=off -c jit=off -c lc_messages=C' \
        >/dev/null </dev/null || die "docker run postgres:17 failed, see above. Another server can be named with DATABASE_URL."
    for ((i = 0; i < 600; i++)); do
        # Over TCP: the image's first, temporary server listens on the socket only.
        if docker exec "$pg_container" pg_isready -q -h 127.0.0.1 2>/dev/null </dev/null; then
            port=$(docker port "$pg_container" 5432/tcp | sed -n 's/^127\.0\.0\.1://p')
            DATABASE_URL="postgres://postgres@127.0.0.1:$port/mcp_idempotent_test"
            export DATABASE_URL
            return 0
        fi
        sleep 0.1
    done
    docker logs "$pg_container" >&2 || true
    die "Postgres in the container did not get ready, see above."
}

# --- messages in another language --------------------------------------------------------------------

# Compiles a locale into the scratch directory when the machine has none that Postgres is translated to.
# It needs no rights, only the sources of locales (Debian: the package 'locales').
make_message_locale() {
    if locale -a 2>/dev/null | grep -qiE '^(de|fr|es|it)_.*utf-?8$'; then return 0; fi
    command -v localedef >/dev/null || return 0
    if [ ! -e /usr/share/i18n/locales/de_DE ] && can_install; then
        install_packages locales || return 0
    fi
    mkdir "$scratch/locale"
    if localedef -i de_DE -f UTF-8 "$scratch/locale/de_DE.UTF-8" >/dev/null 2>&1; then
        pg_locale_path=$scratch/locale
    fi
}

# Asks the server itself: a locale may exist while the translations are missing.
choose_message_locale() {
    local client candidate message
    unset MCP_TEST_LOCALE
    if client=$(psql_program); then
        for candidate in de_DE.UTF-8 de_DE.utf8 fr_FR.UTF-8 fr_FR.utf8 es_ES.UTF-8 es_ES.utf8 it_IT.UTF-8 it_IT.utf8; do
            message=$("$client" "$DATABASE_URL" -XAtq -c "SET lc_messages TO '$candidate'" -c 'SELECT 1/0' 2>&1 </dev/null) || true
            case $message in
                *'division by zero'* | *lc_messages* | '') ;;
                *)
                    export MCP_TEST_LOCALE=$candidate
                    return 0
                    ;;
            esac
        done
    fi
    note "warning: this Postgres speaks English only (or there is no psql to ask it); tests of other languages
will fail. Give the server a German locale (Debian, as root: 'apt-get install locales' and
'localedef -i de_DE -f UTF-8 de_DE.UTF-8') and a build with translations."
}

# --- the end -------------------------------------------------------------------------------------------

stop_postgres() {
    local file pid
    if [ -n "$pg_container" ]; then
        docker rm --force "$pg_container" >/dev/null 2>&1 </dev/null || true
    fi
    # Tests keep their own clusters under $scratch as well; one whose test was killed is still running.
    while IFS= read -r file; do
        pid=$(head -n 1 "$file" 2>/dev/null) || continue
        if is_server_of "$pid" "${file%/postmaster.pid}"; then end_server "$pid"; fi
    done < <(find "$scratch" -maxdepth 6 -name postmaster.pid 2>/dev/null)
    # A server that was interrupted while it started has no such file yet.
    if [ -n "$pg_pid" ]; then end_server "$pg_pid"; fi
    return 0
}

# A pid file may be stale and its number belong to another process by now.
is_server_of() {
    case $1 in '' | *[!0-9]*) return 1 ;; esac
    if [ -e "/proc/$1/cwd" ] || [ -L "/proc/$1/cwd" ]; then
        [ "$(readlink "/proc/$1/cwd")" = "$(cd -P "$2" && pwd)" ]
    else
        ps -o args= -p "$1" 2>/dev/null | grep -qF "$2"
    fi
}

# Immediate shutdown; the data is thrown away.
end_server() {
    local i
    kill -QUIT "$1" 2>/dev/null || return 0
    for ((i = 0; i < 100; i++)); do
        if ! kill -0 "$1" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    kill -KILL "$1" 2>/dev/null || true
}
