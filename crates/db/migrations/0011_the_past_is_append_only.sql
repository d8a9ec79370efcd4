-- What was decided, in order; what changed by it; what was used by it. `place` is the position within one decision.
create table journal (
    seq bigint not null,
    at bigint not null,
    config text not null,
    v bigint not null,
    data text not null,
    constraint journal_seq_unique primary key (seq)
);

create table event (
    seq bigint not null,
    place bigint not null,
    id {key} not null,
    at bigint not null,
    subject {key} not null,
    v bigint not null,
    data text not null,
    primary key (seq, place)
);
create unique index event_id_unique on event (id);
create index event_subject on event (subject, seq, place);

create table usage (
    seq bigint not null,
    place bigint not null,
    at bigint not null,
    v bigint not null,
    data text not null,
    primary key (seq, place)
);
create index usage_at on usage (at);
