create table lease (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    site {key} not null,
    attempt {key} not null,
    state text not null,
    ended_at bigint,
    constraint lease_attempt_exists foreign key (attempt) references attempt (key) deferrable initially deferred
);
create index lease_attempt on lease (attempt);
create index lease_not_ended on lease (attempt) where ended_at is null;
create index lease_ended_at on lease (ended_at);

-- One row for each device of a lease, so that the schema allows one live lease per device.
create table lease_device (
    lease {key} not null,
    device {key} not null,
    live bigint not null check (live in (0, 1)),
    primary key (lease, device),
    constraint lease_device_lease_exists foreign key (lease) references lease (key) deferrable initially deferred,
    constraint lease_device_exists foreign key (device) references device (key) deferrable initially deferred
);
create unique index lease_device_one_live on lease_device (device) where live = 1;
