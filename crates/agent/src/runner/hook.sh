#!/bin/sh
# The job-started hook of a runner of Forgeyard. It says which job was taken and waits until the farm has said whether
# that job may run here; only then does the first step begin. The agent put it here; nothing of a job can write it.
#
# Runners call it as `bash -e FILE`, others as a program: so it is for any POSIX shell, and nothing in it relies on -e.
# What the forge says is printed and never evaluated.
set +e
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
taken=/.forgeyard/taken
answer=/.forgeyard/hook/answer
patience=300

# A step that is to run always runs after a hook that failed, too. Its program is our parent: without it no step runs,
# and the part of the runner that speaks to the forge reports the job as failed. The pause lets our lines get there.
refuse() {
    if [ "$(cat "/proc/$PPID/comm" 2>/dev/null)" = Runner.Worker ]; then
        sleep 3
        kill -KILL "$PPID"
    fi
    exit 1
}

{
    printf '%s\n' 'forgeyard taken 1' &&
    printf '%s=%s\n' \
        repository_id "${GITHUB_REPOSITORY_ID-}" \
        repository "${GITHUB_REPOSITORY-}" \
        run_id "${GITHUB_RUN_ID-}" \
        run_attempt "${GITHUB_RUN_ATTEMPT-}" \
        job "${GITHUB_JOB-}" \
        actor_id "${GITHUB_ACTOR_ID-}" \
        actor "${GITHUB_ACTOR-}" \
        triggering_actor "${GITHUB_TRIGGERING_ACTOR-}" &&
    printf '%s\n' end
} > "$taken/new" && mv -f "$taken/new" "$taken/job" || {
    printf '%s\n' '[forgeyard] this runner could not tell the farm which job it took, so no step of it runs' \
        '[forgeyard] fix: run the job again; if that does not help, ask whoever runs this farm to look at its image'
    refuse
}

began=$(date +%s)
until [ -f "$answer" ]; do
    now=$(date +%s)
    if [ "$((now - began))" -ge "$patience" ]; then
        printf '%s\n' "[forgeyard] the farm did not say within $patience seconds whether this job may run, so no step of it runs" \
            '[forgeyard] fix: run the job again; if that does not help, ask whoever runs this farm'
        refuse
    fi
    sleep 0.2 2>/dev/null || sleep 1
done
word=
{
    read -r word
    while IFS= read -r line; do
        printf '%s\n' "$line"
    done
} < "$answer"
[ "$word" = allowed ] && exit 0
refuse
