create table delivery (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    state text not null,
    ended_at bigint
);
create index delivery_not_ended on delivery (key) where ended_at is null;
create index delivery_ended_at on delivery (ended_at);

create table delivery_body (
    guid {key} not null primary key,
    body {bytes} not null,
    constraint delivery_body_delivery_exists foreign key (guid) references delivery (key) deferrable initially deferred
);
