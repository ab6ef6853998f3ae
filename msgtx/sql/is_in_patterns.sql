-- is_in_patterns(topic, patterns) → whether the name of a topic is one of these, or begins with one that ends with *. Plain
-- SQL without settings, so that it becomes part of the statement that calls it.
create function msgtx.is_in_patterns(topic_name text, patterns text[]) returns boolean language sql immutable as $$
    select exists (
        select from unnest(patterns) p(pattern)
        where p.pattern = topic_name or (p.pattern like '%*' and starts_with(topic_name, left(p.pattern, -1))))
$$;
