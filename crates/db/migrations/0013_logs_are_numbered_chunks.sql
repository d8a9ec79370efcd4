create table log (
    attempt {key} not null primary key,
    durable bigint not null,
    complete bigint not null check (complete in (0, 1))
);

-- The bytes of a chunk are in the blob store.
create table log_chunk (
    attempt {key} not null,
    position bigint not null,
    length bigint not null,
    digest text not null,
    primary key (attempt, position)
);
