create table effect (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    pipeline {key},
    job {key},
    environment {key},
    ended_at bigint
);
create index effect_not_ended on effect (key) where ended_at is null;
create index effect_ended_at on effect (ended_at);
create index effect_pipeline on effect (pipeline) where pipeline is not null;
create index effect_job on effect (job) where job is not null;
create index effect_environment on effect (environment) where environment is not null;
