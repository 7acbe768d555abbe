"""Which link a message takes: that of its two nodes, else an access link."""

from serving.network.channel import LinkTable


class Wire:
    """A link of which only its identity matters."""

    def arrival_s(self, nbytes: float, now: float) -> float:
        return now


UP, DOWN, OTHER_UP, OTHER_DOWN, OWN = Wire(), Wire(), Wire(), Wire(), Wire()


def table() -> LinkTable:
    made = LinkTable()
    made.connect_access("device-0", UP, DOWN)
    made.connect_access("device-1", OTHER_UP, OTHER_DOWN)
    return made


def test_access_links_lead_to_and_from_every_other_node() -> None:
    links = table()
    assert (links.find("device-0", "cloud-0"), links.find("cloud-7", "device-0")) == (UP, DOWN)
    assert links.find("device-0", "device-1") is UP, "its sender's"


def test_a_link_between_two_nodes_comes_before_their_access_links() -> None:
    links = table()
    links.connect("cloud-0", "device-0", OWN)
    assert (links.find("cloud-0", "device-0"), links.find("cloud-1", "device-0")) == (OWN, DOWN)


def test_nodes_without_a_link_and_a_node_with_itself_have_none() -> None:
    links = table()
    assert [links.find("cloud-0", "cloud-1"), links.find("device-0", "device-0")] == [None, None]
    links.connect("device-0", "device-0", OWN)
    assert links.find("device-0", "device-0") is OWN
