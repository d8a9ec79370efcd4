create table demand (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    forge text not null,
    job text not null,
    run text not null,
    state text not null,
    ended_at bigint
);
-- Whoever reports a job, and however often: it is one demand.
create unique index demand_job_unique on demand (forge, job);
create index demand_not_ended on demand (key) where ended_at is null;
create index demand_ended_at on demand (ended_at);

-- A job belongs to a pipeline or to a demand.
alter table job alter column pipeline drop not null;
alter table job add column demand {key};
alter table job add constraint job_demand_exists
    foreign key (demand) references demand (key) deferrable initially deferred;
alter table job add constraint job_has_one_owner check ((pipeline is null) <> (demand is null));
create unique index job_demand_name_unique on job (demand, name);
drop index job_not_ended;
create index job_not_ended on job (key) where ended_at is null;

-- An attempt belongs to what its job belongs to.
alter table attempt rename column pipeline to owner;

alter table effect add column demand {key};
create index effect_demand on effect (demand) where demand is not null;
