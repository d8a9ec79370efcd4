create trigger journal_append_only_update before update on journal
begin
    select raise(abort, 'journal_append_only');
end;
create trigger journal_append_only_delete before delete on journal
begin
    select raise(abort, 'journal_append_only');
end;
create trigger event_append_only_update before update on event
begin
    select raise(abort, 'event_append_only');
end;
create trigger event_append_only_delete before delete on event
begin
    select raise(abort, 'event_append_only');
end;
create trigger usage_append_only_update before update on usage
begin
    select raise(abort, 'usage_append_only');
end;
create trigger usage_append_only_delete before delete on usage
begin
    select raise(abort, 'usage_append_only');
end;
