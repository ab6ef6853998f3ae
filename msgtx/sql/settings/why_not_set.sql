-- why_not_set(subject, settings) → a sentence if one of these settings (JSON) of a topic or a share group is unknown or out
-- of range, and the values in it; else no row.
create function msgtx.why_not_set(subject text, settings jsonb)
returns table (sentence text, facts jsonb) language sql stable as $$
    select w.sentence, jsonb_build_object('name', g.name, 'given', g.given, 'limit', coalesce(to_jsonb(d.choices), to_jsonb(
        case when g.given ~ '^[0-9]{1,19}$' and g.given::numeric > d.highest then d.highest else d.lowest end)))
    from jsonb_each_text(settings) g(name, given)
    left join msgtx.declared_settings(subject) d on d.name = g.name
    cross join lateral (select case
        when d.name is null then format('unknown %s setting %s; known are %s', replace(subject, '_', ' '), g.name, (
            select string_agg(k.name, ', ') from msgtx.declared_settings(subject) k))
        when (g.given = any (d.choices)) is not true and d.choices is not null then format(
            '%s is %s, not %s', g.name, array_to_string(d.choices, ' or '), quote_nullable(g.given))
        when d.lowest is not null
             and (g.given ~ '^-?[0-9]{1,19}$' and g.given::numeric between d.lowest and d.highest) is not true then format(
            '%s is a number from %s to %s, not %s', g.name, d.lowest, d.highest, coalesce(g.given, 'NULL')) end) w(sentence)
    where w.sentence is not null order by g.name limit 1
$$;
