create table runner (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    site {key} not null,
    attempt {key} not null,
    state text not null,
    ended_at bigint,
    constraint runner_site_exists foreign key (site) references site (key) deferrable initially deferred
);
create index runner_attempt on runner (attempt);
create index runner_not_ended on runner (attempt) where ended_at is null;
create index runner_ended_at on runner (ended_at);

-- A live attempt is one that has not ended; the spelling of that state is pinned by a test.
create table attempt (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    job {key} not null,
    pipeline {key} not null,
    fence bigint not null,
    runner {key} not null,
    state text not null,
    ended_at bigint,
    constraint attempt_job_exists foreign key (job) references job (key) deferrable initially deferred,
    constraint attempt_runner_exists foreign key (runner) references runner (key) deferrable initially deferred
);
create unique index attempt_job_fence_unique on attempt (job, fence);
create unique index attempt_one_live_per_job on attempt (job) where state <> 'ended';
create unique index attempt_runner_unique on attempt (runner);
create index attempt_pipeline on attempt (pipeline);
create index attempt_not_ended on attempt (pipeline) where ended_at is null;
