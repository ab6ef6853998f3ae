"""A mirror whose calls fail, on either side, before or after they were done: each record arrives once."""

from collections.abc import Callable

import msgtx
from tests.hooks import Hook, away
from tests.mirror.conftest import contents

Copy = Callable[..., msgtx.MirrorReport]


def test_a_call_that_fails_or_whose_answer_is_lost_loses_and_doubles_nothing(
    client: msgtx.Client,
    target: msgtx.Client,
    wide: str,
    copy: Copy,
    make: Callable[..., msgtx.Producer],
    unique: Callable[[str], str],
) -> None:
    """Each call of one copy fails once, in a copy of its own (I6)."""
    producer = make()

    def send_more() -> None:
        for number in range(3):
            with producer.transaction():
                for partition in range(3):
                    producer.send(wide, b"%d" % number, key=b"k", partition=partition)

    send_more()
    hooks = {"source": Hook(client.runtime.engine), "target": Hook(target.runtime.engine)}
    name = unique("mirror")
    copy(wide, name=name)
    moments = [
        (end, moment)
        for end, hook in hooks.items()
        for moment in hook.seen
        if moment.startswith(("before", "after"))
        and not any(word in moment for word in ("woken", "notify", "mark", "identify_server"))
    ]
    assert {"before take_over_mirror", "after take_over_mirror", "after seal"} <= {moment for _, moment in moments}
    for end, moment in moments:
        send_more()
        with hooks[end].at(moment, away, times=1):
            copy(wide, name=name)
        assert contents(target, wide) == contents(client, wide), (end, moment)
    assert not list(target.admin.verify().violations)
