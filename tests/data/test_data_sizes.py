"""Claims about sizes."""

import pytest

from widemargin.data.idx import check_claim, memory_limit
from widemargin.errors import InputError


def test_claims() -> None:
    check_claim("f", claimed=100, stored=100, deflated=False)
    check_claim("f", claimed=1000, stored=1, deflated=True)
    with pytest.raises(InputError, match="f: the header promises 101 bytes, more than 100"):
        check_claim("f", claimed=101, stored=100, deflated=False)
    with pytest.raises(InputError, match="f: the header promises"):
        check_claim("f", claimed=10_000, stored=1, deflated=True)
    with pytest.raises(InputError, match="memory"):
        check_claim("f", claimed=memory_limit() + 1, stored=memory_limit() * 2, deflated=False)


def test_without_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf")
    assert memory_limit() == 8 * 2**30
