import pytest

from muster_kube.api.credentials import FileToken
from muster_kube.api.errors import ConfigError


async def test_a_rotated_token_is_read_within_a_minute_and_not_before(tmp_path, fake_time):
    path = tmp_path / "token"
    path.write_text("one\n")
    token = FileToken(path, clock=fake_time.clock)
    assert await token.header() == "Bearer one"
    path.write_text("two\n")
    fake_time.now += 59
    assert await token.header() == "Bearer one"
    fake_time.now += 1
    assert await token.header() == "Bearer two"


async def test_a_refused_token_is_read_again_at_once(tmp_path, fake_time):
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path, clock=fake_time.clock)
    old = await token.header()
    path.write_text("two")
    assert token.refused(old)
    assert await token.header() == "Bearer two"


async def test_a_late_refusal_of_the_old_token_does_not_read_the_file_again(tmp_path, fake_time):
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path, clock=fake_time.clock)
    old = await token.header()
    path.write_text("two")
    token.refused(old)
    await token.header()
    path.write_text("three")
    token.refused(old)
    assert await token.header() == "Bearer two"


async def test_in_the_middle_of_a_rotation_the_old_token_serves(tmp_path, fake_time):
    path = tmp_path / "token"
    path.write_text("one")
    token = FileToken(path, clock=fake_time.clock)
    await token.header()
    for breaks in (path.unlink, lambda: path.write_text("")):
        breaks()
        fake_time.now += 61
        assert await token.header() == "Bearer one"


async def test_a_token_that_never_was_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"/absent"):
        await FileToken(tmp_path / "absent").header()
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(ConfigError, match=r"/empty"):
        await FileToken(tmp_path / "empty").header()
