# Compiles three files that are always the same and one that no other run has, with what is installed. Nothing here says
# where a cache is.
mkdir -p /work/tree && cd /work/tree
for number in 1 2 3; do
    printf '#include <stdio.h>\nint part(void) { return printf("%%d", %s); }\n' "$number" > "part$number.c"
done
printf 'int own(void) { return %s; }\n' "$GITHUB_RUN_ID" > own.c
sccache=$(command -v sccache || echo /opt/forgeyard/clients/bin/sccache)
for name in part1 part2 part3 own; do
    if [ -x /usr/bin/ccache ]; then /usr/bin/ccache gcc -O1 -c $name.c -o $name.o; fi
    if [ -x "$sccache" ]; then "$sccache" gcc -O1 -c $name.c -o $name.so; fi
done
if [ -x "$sccache" ]; then "$sccache" --stop-server >/dev/null; fi
cat ~/.bazelrc
env | grep -E 'CACHE|NIX|NODE' | sort
cd /
