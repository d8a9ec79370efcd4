create table site (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    name text not null
);
create unique index site_name_unique on site (name);

create table device (
    key {key} not null primary key,
    generation bigint not null,
    v bigint not null,
    data text not null,
    updated_at bigint not null,
    site {key} not null,
    state text not null,
    constraint device_site_exists foreign key (site) references site (key) deferrable initially deferred
);
