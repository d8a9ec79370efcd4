create table setting (
    key {key} not null primary key,
    value text not null
);
