create table pool (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);

-- A machine may be made before there is an attempt for it, and may hold a lease meanwhile.
alter table runner alter column attempt drop not null;
alter table lease alter column attempt drop not null;
