-- Since when a demand rests: its end, or when the forge was asked to run its job again, if that was later; nothing while it is
-- not over or its job is still to be run again. With the number of the job, so that the index alone answers which jobs there were.
alter table demand add column rests_at bigint;
alter table demand add column launch {key};
update demand set
    launch = data->>'launch',
    rests_at = case
        when ended_at is null or data->'repeat'->>'intent' = 'wanted' then null
        else max(ended_at, coalesce(data->'repeat'->>'at', ended_at))
    end;
drop index demand_ended_at;
create index demand_rests_at on demand (rests_at, forge, job);
