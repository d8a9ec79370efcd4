create table approval (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);
create table acceptance (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);
create table config (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null
);
