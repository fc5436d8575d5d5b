"""A server without others agrees with itself."""

from serving.coordination import Alone


class Heard:
    """A server that notes what it is told."""

    def __init__(self):
        self.beside, self.num_looks = None, 0

    def want(self, beside):
        self.beside = beside

    def look(self):
        self.num_looks += 1


def test_it_is_told_to_look_and_not_what_it_has_done_itself():
    alone, heard = Alone(), Heard()
    alone.look()
    alone.start(heard)
    alone.publish(("canary", "mood"), None)
    alone.look()
    alone.close()
    alone.look()
    assert (heard.beside, heard.num_looks) == (None, 1)
