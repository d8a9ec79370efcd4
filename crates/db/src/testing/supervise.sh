# Owns a private PostgreSQL in a folder: reads one command a line, answers `ok` or `failed`. When its input ends, which
# it does however the process at the other end dies, the server is stopped and the folder removed.
#
# Arguments: folder of the programs, folder of the cluster.
bin=$1
dir=$2
trap : INT TERM
cd "$dir" || exit 1
# The server refuses to run as root.
as() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"
    else
        "$@"
    fi
}
control() {
    as "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 "$@" >>"$dir/control.log" 2>&1 </dev/null
}
answer() {
    if "$@"; then echo ok; else echo failed; fi
}
init() {
    if [ "$(id -u)" = 0 ]; then chown postgres "$dir"; fi
    # The cluster itself need not survive a crash of the machine while it is made; what is written later is synced.
    as "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync --wal-segsize=4 \
        >>"$dir/control.log" 2>&1 </dev/null
}
start() {
    control -o "-c listen_addresses='' -c unix_socket_directories='$dir' -c max_connections=200" start
}
while read -r word; do
    case $word in
        init) answer init ;;
        start) answer start ;;
        stop) answer control -m fast stop ;;
        kill) answer control -m immediate stop ;;
        *) echo failed ;;
    esac
done
control -m immediate stop
cd / && rm -rf "$dir"
