-- An attempt that comes later has a larger number than every attempt of its job before it. Equal numbers are left to
-- the unique index, which has a name of its own.
create function attempt_fence_grows() returns trigger language plpgsql as $$
begin
    if exists (select 1 from attempt as earlier where earlier.job = new.job and earlier.fence > new.fence) then
        raise exception 'attempt_fence_grows' using errcode = 'check_violation', constraint = 'attempt_fence_grows';
    end if;
    return new;
end
$$;
create trigger attempt_fence_grows before insert on attempt for each row execute function attempt_fence_grows();
