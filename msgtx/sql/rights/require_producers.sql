-- require_producers(producer_ids) raises 42501 if one of them belongs to another role: a producer id is a name that readers
-- see, no secret. An id is the caller's if the caller, or a role with rights that the caller inherits, initialized it last.
-- The bits of an id without a row identify its role (tag_of_role). An id that an earlier version gave out may be used by
-- any role until it is initialized again. For a transactional id the caller also needs the right to it. A role with a grant
-- of the id by name may end another user's open transaction. Called for callers that do not act for the owner. Reads
-- producer, installation, role_right.
-- plan: look-ups
create function msgtx.require_producers(producer_ids bigint[]) returns boolean language plpgsql stable as $$
declare
    asked bigint;
    known record;
    named record;
begin
    foreach asked in array producer_ids loop
        continue when asked is null;
        select p.transactional_id, p.role_name into known from msgtx.producer p where p.producer_id = asked;
        if known.transactional_id is not null
           and exists (select from msgtx.role_right r where r.resource = 'transactional_id') then
            select n.everything, n.granted, n.may_use into named
            from msgtx.names_of_caller('transactional_id', known.transactional_id) n;
            continue when named.everything or named.granted;
            if not named.may_use then  -- which it tells
                perform msgtx.require_names('transactional_id', array[known.transactional_id]);
            end if;
        end if;
        continue when known.role_name = msgtx.caller();
        continue when known.role_name is null and asked >> 40 = msgtx.tag_of_role(msgtx.caller());
        continue when known.role_name is null
            and asked < (select i.first_owned_producer_id from msgtx.installation i);
        continue when msgtx.acts_for_role(known.role_name);
        raise exception using errcode = '42501', message = format(
            'producer %s is not of role %s: its transactions are decided, and its batches appended, by the role that'
            ' initialized it, or one that inherits its rights, or was given its transactional id', asked, msgtx.caller()),
            detail = jsonb_build_object('role', msgtx.caller(), 'producer_id', asked, 'reason', 'owner');
    end loop;
    return true;
end $$;
