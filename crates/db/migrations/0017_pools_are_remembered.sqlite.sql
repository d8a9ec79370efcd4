create table pool (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);

-- A machine may be made before there is an attempt for it, and may hold a lease meanwhile. SQLite cannot loosen a column, so
-- the tables are made anew; references to them are checked when the transaction ends, and by then every row is back.
create table runner_before as select * from runner;
drop table runner;
create table runner (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    site {key} not null,
    attempt {key},
    state text not null,
    ended_at bigint,
    constraint runner_site_exists foreign key (site) references site (key) deferrable initially deferred
);
create index runner_attempt on runner (attempt);
create index runner_not_ended on runner (attempt) where ended_at is null;
create index runner_ended_at on runner (ended_at);
insert into runner (key, generation, v, data, updated_at, site, attempt, state, ended_at)
    select key, generation, v, data, updated_at, site, attempt, state, ended_at from runner_before;
drop table runner_before;

create table lease_before as select * from lease;
drop table lease;
create table lease (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    site {key} not null,
    attempt {key},
    state text not null,
    ended_at bigint,
    constraint lease_attempt_exists foreign key (attempt) references attempt (key) deferrable initially deferred
);
create index lease_attempt on lease (attempt);
create index lease_not_ended on lease (attempt) where ended_at is null;
create index lease_ended_at on lease (ended_at);
insert into lease (key, generation, v, data, updated_at, site, attempt, state, ended_at)
    select key, generation, v, data, updated_at, site, attempt, state, ended_at from lease_before;
drop table lease_before;
