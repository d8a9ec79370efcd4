create table artifact (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    pipeline {key} not null,
    digest text not null,
    constraint artifact_pipeline_exists foreign key (pipeline) references pipeline (key) deferrable initially deferred
);
create index artifact_pipeline on artifact (pipeline);
create index artifact_digest on artifact (digest);

create table channel (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);

create table environment (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    name text not null,
    pipeline {key} not null,
    state text not null,
    ended_at bigint,
    constraint environment_pipeline_exists
        foreign key (pipeline) references pipeline (key) deferrable initially deferred
);
create index environment_pipeline on environment (pipeline);
create index environment_name on environment (name, key);
