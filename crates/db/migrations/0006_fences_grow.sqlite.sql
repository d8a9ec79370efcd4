-- An attempt that comes later has a larger number than every attempt of its job before it. Equal numbers are left to
-- the unique index, which has a name of its own.
create trigger attempt_fence_grows before insert on attempt
when exists (select 1 from attempt as earlier where earlier.job = new.job and earlier.fence > new.fence)
begin
    select raise(abort, 'attempt_fence_grows');
end;
