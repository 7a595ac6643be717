import os
import warnings

import pytest

from tileweave.backends import host


def test_a_process_that_is_forked_in_a_frugal_run_has_no_limits() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("the system does not fork")
    inside, outside = os.pipe()
    with warnings.catch_warnings(), host.frugal(1):
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
        child = os.fork()
        if child == 0:
            os.write(outside, repr((host.arena._limits, host._FRUGAL)).encode())
    if child == 0:
        os._exit(0)  # the block has ended in the child, too
    os.close(outside)
    with os.fdopen(inside) as told:
        assert told.read() == "([], [])"
    assert os.waitpid(child, 0)[1] == 0
    assert not host.arena._limits
