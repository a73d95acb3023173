"""How long a number counts."""

from tests.operator.visibility.capacities import AWAY, Proxy, capacity_of, controller

from muster_operator.visibility.ipu_capacity import STALE_S


async def test_a_controller_that_stops_answering_has_its_last_numbers_until_they_are_stale() -> None:
    proxy = Proxy(controller("a", 4), controller("b", 8))
    capacity = capacity_of(proxy)
    await capacity.refresh()
    proxy.answer = [controller("a", None), controller("b", 2)]
    proxy.now = STALE_S
    await capacity.refresh()
    silent, other = capacity.read() or ()
    assert silent.ipus == controller("a", 4).ipus
    assert other.ipus == controller("b", 2).ipus
    proxy.now = STALE_S + 1
    assert [each.ipus for each in capacity.read() or ()] == [None, controller("b", 2).ipus]


async def test_a_controller_that_left_the_list_counts_no_longer() -> None:
    proxy = Proxy(controller("a", 4), controller("b", 8))
    capacity = capacity_of(proxy)
    await capacity.refresh()
    proxy.answer = [controller("b", 8)]
    await capacity.refresh()
    assert capacity.read() == (controller("b", 8),)


async def test_without_an_answer_of_the_proxy_nothing_is_known() -> None:
    proxy = Proxy(controller("a", 4))
    proxy.answer = AWAY
    capacity = capacity_of(proxy)
    await capacity.refresh()
    assert (capacity.read(), capacity.error, capacity.is_starting) == (None, AWAY.message, True)
    proxy.now = STALE_S
    assert not capacity.is_starting
    proxy.answer = [controller("a", 4)]
    await capacity.refresh()
    proxy.answer = AWAY
    proxy.now += STALE_S
    await capacity.refresh()
    assert capacity.read() == (controller("a", 4),)
    proxy.now += 1
    assert capacity.read() is None


async def test_followers_hear_of_every_answer() -> None:
    proxy, heard = Proxy(controller("a", 4)), []
    capacity = capacity_of(proxy)
    capacity.followers.append(lambda: heard.append(capacity.read()))
    await capacity.refresh()
    proxy.answer = AWAY
    await capacity.refresh()
    assert len(heard) == 2
