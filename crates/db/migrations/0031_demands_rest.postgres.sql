-- Since when a demand rests: its end, or when the forge was asked to run its job again, if that was later; nothing while it is
-- not over or its job is still to be run again. With the number of the job, so that the index alone answers which jobs there were.
alter table demand add column rests_at bigint;
alter table demand add column launch {key};
-- By patterns, because the functions for JSON refuse a whole row for one escaped zero byte in it. Within a string the quotation marks
-- of these would be escaped.
update demand set
    launch = substring(data from '"launch":"([^"]*)"'),
    rests_at = case
        when ended_at is null or data like '%"repeat":{"intent":"wanted"%' then null
        else greatest(ended_at, substring(data from '"repeat":\{"intent":"done","at":([0-9]+)')::bigint)
    end;
drop index demand_ended_at;
create index demand_rests_at on demand (rests_at, forge, job);
