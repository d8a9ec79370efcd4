create function append_only() returns trigger language plpgsql as $$
begin
    raise exception '%_append_only', tg_table_name
        using errcode = 'check_violation', constraint = tg_table_name || '_append_only';
end
$$;
create trigger journal_append_only before update or delete or truncate on journal
    for each statement execute function append_only();
create trigger event_append_only before update or delete or truncate on event
    for each statement execute function append_only();
create trigger usage_append_only before update or delete or truncate on usage
    for each statement execute function append_only();
