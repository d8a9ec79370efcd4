-- One row: the epoch of the core that may write, and until when its lease lasts, by the clock of the database.
create table core (
    id bigint not null primary key check (id = 1),
    epoch bigint not null,
    holder text not null,
    expires_at bigint not null
);
insert into core (id, epoch, holder, expires_at) values (1, 0, '', 0);
