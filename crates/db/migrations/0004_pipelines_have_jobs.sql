create table pipeline (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    delivery {key} not null,
    state text not null,
    ended_at bigint
);
create index pipeline_not_ended on pipeline (key) where ended_at is null;
create index pipeline_ended_at on pipeline (ended_at);

create table job (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    pipeline {key} not null,
    name text not null,
    state text not null,
    ended_at bigint,
    constraint job_pipeline_exists foreign key (pipeline) references pipeline (key) deferrable initially deferred
);
create unique index job_name_unique on job (pipeline, name);
create index job_not_ended on job (pipeline) where ended_at is null;
